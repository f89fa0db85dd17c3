"""Videos: the state of every subtask at every step, what is drawn, and files that other programs read."""

import dataclasses
import io

import numpy as np
import pytest
import torch
from PIL import Image
from tensordict import TensorDict

from structrl.evaluate.replay import select
from structrl.evaluate.video import (
    DONE,
    ELIGIBLE,
    PANEL,
    PENDING,
    STYLE,
    UNDONE,
    UNPAID,
    annotate,
    gif,
    pictures,
    timeline,
    write_mp4,
)
from structrl.rewards.score import score_episode
from structrl.rl.rollout import Episodes

from .example import episode

IN, OUT, HELD, FREE, SHUT, OPEN = -0.1, 0.1, 1.0, 0.0, 0.05, 1.0
# apple in at reset and all along; drink in at step 2, out at 4 (undone), in again at 5; lid shut at 6: success
PLAY = episode(
    [
        [IN, OUT, FREE, OPEN],
        [IN, IN, HELD, OPEN],
        [IN, IN, FREE, OPEN],
        [IN, IN, FREE, OPEN],
        [IN, OUT, FREE, OPEN],
        [IN, IN, FREE, OPEN],
        [IN, IN, FREE, SHUT],
    ]
)


def scored(play):
    return score_episode(play.task, play.holds[1:], play.success[1:], holds_at_reset=play.holds[0])


def test_timeline():
    state, credit = timeline(PLAY, scored(PLAY))
    assert state[:, 0].tolist() == [UNPAID] * 7
    assert state[:, 1].tolist() == [ELIGIBLE, ELIGIBLE, DONE, DONE, UNDONE, DONE, DONE]
    assert state[:, 2].tolist() == [PENDING, PENDING, ELIGIBLE, ELIGIBLE, ELIGIBLE, ELIGIBLE, DONE]
    score = scored(PLAY)
    drink, close = score.pay[1].item(), score.pay[2].item()
    assert credit == pytest.approx([0, 0, drink, drink, drink, drink, drink + close + 2.0])
    assert credit == pytest.approx(np.cumsum([0, *score.rewards.tolist()]))


def test_picture_stays_and_panel_tells():
    frames = np.random.default_rng(0).integers(0, 255, (7, 41, 63, 3), dtype=np.uint8)
    drawn = annotate(PLAY, frames, {}, 1)
    assert drawn.dtype == np.uint8 and drawn.shape[1] % 2 == drawn.shape[2] % 2 == 0
    np.testing.assert_array_equal(drawn[:, :41, :63], frames)
    panel = drawn[:, :, 63 : 63 + PANEL]
    for kind in range(5):  # every state has its colour where the timeline has it, and nowhere else
        state, _ = timeline(PLAY, scored(PLAY))
        shown = (panel == STYLE[kind][1]).all(-1).any((1, 2))
        assert shown.tolist() == (state == kind).any(1).tolist(), STYLE[kind]


def test_long_labels_stay_in_the_panel():
    frames = np.zeros((7, 32, 32, 3), np.uint8)
    subtasks = tuple(dataclasses.replace(s, label=s.label * 20) for s in PLAY.task.subtasks)
    play = dataclasses.replace(PLAY, task=dataclasses.replace(PLAY.task, subtasks=subtasks))
    state, _ = timeline(play, scored(play))
    drawn = annotate(play, frames, {}, 1)
    word = drawn[0, :, -74:]  # where the words of the states are
    assert (word == STYLE[state[0, 1]][1]).all(-1).any()


def test_pictures_of_every_step_are_wanted():
    assert pictures(PLAY).shape == (7, 4, 4, 3)
    with pytest.raises(ValueError, match="every step"):
        pictures(episode(PLAY.atom_values, obs_at=[0, 3, 6]))


def test_gif_is_read_back():
    frames = np.zeros((5, 20, 30, 3), np.uint8)
    frames[:, :10] = np.arange(5)[:, None, None, None] * 50
    with Image.open(io.BytesIO(gif(frames, 20))) as image:
        assert image.n_frames == 5 and image.size == (30, 20) and image.info["duration"] == 50
        for t in range(5):
            image.seek(t)
            assert np.abs(np.asarray(image.convert("RGB"))[:10].astype(int) - 50 * t).max() < 8


def test_mp4_is_read_back(tmp_path):
    av = pytest.importorskip("av")
    frames = np.full((6, 32, 48, 3), 60, np.uint8)
    frames[3:, :, :24] = 200
    write_mp4(tmp_path / "new" / "a.mp4", frames, 20)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.mp4"]
    with av.open(str(tmp_path / "new" / "a.mp4")) as container:
        assert container.streams.video[0].average_rate == 20
        read = [frame.to_ndarray(format="rgb24").astype(int) for frame in container.decode(video=0)]
    assert len(read) == 6 + 20
    for t, page in enumerate(read):
        assert np.abs(page[:, 4:20] - frames[min(t, 5)][:, 4:20]).max() < 12


@pytest.mark.parametrize(
    ("success", "count", "rows"),
    [
        ("1111", 2, [0, 1]),
        ("0000", 2, [0, 1]),
        ("110100", 4, [0, 1, 2, 4]),
        ("1110", 3, [0, 1, 3]),
        ("10", 5, [0, 1]),
        ("0111", 1, [1]),
    ],
)
def test_selection_holds_failures_and_successes(success, count, rows):
    table = TensorDict({"success": torch.tensor([c == "1" for c in success])}, [len(success)])
    episodes = Episodes(TensorDict(), table, TensorDict(), {}, torch.arange(len(success)), len(success))
    assert select(episodes, count) == rows
