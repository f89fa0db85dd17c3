import dataclasses

import h5py
import pytest

from structrl.evaluate.episodes import EpisodeWriter
from structrl.evaluate.explain import describe_episode
from structrl.lang.explain import explain as main

from .example import TASK, episode

#           in(apple) in(drink) grasped closed
APPLE_IN = [-0.1, 1.0, 0.0, 1.5]
NOTHING = [1.0, 1.0, 0.0, 1.5]


def said(values, task=TASK, options=None, chunk=1, **kwargs):
    return describe_episode(episode(values, task, **kwargs), options or {}, chunk).splitlines()


def test_credits_with_step_time_duration_and_pay():
    lines = said([NOTHING, NOTHING, APPLE_IN, [-0.1, -0.1, 0, 1.5], [-0.1, -0.1, 0, 0.05]])
    # beta / (1 + T / T_d): 0.6/(1+2/4), 0.6/(1+1/3), 0.6/(1+1/2), and 2 for success
    assert lines == [
        f"pack: ended by success at step 4; return {0.4 + 0.45 + 0.4 + 2:.3f}",
        "  step    2  apple_in: +0.400  (T = 2 steps, T_d = 4 steps)",
        "  step    3  drink_in: +0.450  (T = 1 steps, T_d = 3 steps)",
        "  step    4  close: +0.400  (T = 1 steps, T_d = 2 steps)",
        "  step    4  success: +2.000",
    ]


def test_recorded_reward_options_are_used():
    lines = said([NOTHING, NOTHING, APPLE_IN], options={"preset": "fixed_ungated"})
    assert "  step    2  apple_in: +0.300  (T = 2 steps, T_d = 4 steps)" in lines


def test_missing_durations_are_said():
    task = dataclasses.replace(TASK, subtasks=tuple(dataclasses.replace(s, duration=None) for s in TASK.subtasks))
    lines = said([NOTHING, NOTHING, APPLE_IN], task)
    assert "apple_in, drink_in and close had no duration" in lines[1] and "pace: fixed" in lines[1]
    assert "  step    2  apple_in: +0.300  (T = 2 steps)" in lines


def test_never_true_names_closest_value_and_missing_prerequisite():
    lines = said([NOTHING, [0.031, 1, 0, 1.5], [0.5, 1, 0, 0.3]])
    assert lines[0] == "pack: ended by the horizon, without success at step 2; return 0.000"
    assert "  nothing was earned" in lines
    at = lines.index("  not done   apple_in: in(apple, box)")
    assert lines[at + 1 : at + 3] == [
        "             its turn came at step 0",
        "             in(apple, box): best 0.031 m at step 1, needs < 0 m",
    ]
    at = lines.index("  not done   close: closed(box)")
    assert lines[at + 1 :] == [
        "             its turn never came: apple_in and drink_in must come before it",
        "             closed(box): best 0.3 rad at step 2, needs < 0.1 rad",
    ]


def test_true_before_its_turn():
    lines = said([NOTHING, [1, 1, 0, 0.05], [1, 1, 0, 0.05], [-0.1, -0.1, 0, 1.2], [-0.1, -0.1, 0, 1.1]])
    at = lines.index("  not done   close: closed(box)")
    assert lines[at + 1 :] == [
        "             its turn came at step 3",
        "             true before its turn at steps 1-2, which earns nothing",
        "             closed(box): best 1.1 rad at step 4, needs < 0.1 rad",
    ]


def test_unpaid():
    lines = said([APPLE_IN, APPLE_IN, [-0.1, -0.1, 0, 1.5]])
    assert "  unpaid     apple_in: it was true at reset and stayed so until its turn came" in lines
    assert not any("apple_in: +" in line for line in lines)


def test_undone():
    lines = said([NOTHING, APPLE_IN, APPLE_IN, NOTHING])
    at = next(i for i, line in enumerate(lines) if "apple_in: +" in line)
    assert "undone: no longer true at the end, last true at step 2" in lines[at + 1]


def test_forfeited_at_success():
    """Success does not ask for `drink_in`'s free hand here, so the episode ends before drink and close are credited."""
    lines = said([NOTHING, [-0.1, -0.1, 1, 0.05]])
    at = lines.index("  not done   drink_in: in(drink, box) and not grasped(drink)")
    assert lines[at + 1 : at + 4] == [
        "             its turn came at step 0",
        "             each atom was as needed at some step, but never all at once; most of them at step 1, all but "
        "not grasped(drink): 1 at step 1, needs <= 0.5",
        "             forfeited: success ended the episode at step 1",
    ]


def test_newly():
    subtasks = (*TASK.subtasks[:2], dataclasses.replace(TASK.subtasks[2], newly=True))
    task = dataclasses.replace(TASK, subtasks=subtasks, success=None)
    one = episode([[1, -0.1, 0, 0.05], [-0.1, -0.1, 0, 0.05], [-0.1, -0.1, 0, 0.05]], task)
    one.success[:] = False
    lines = describe_episode(one, {}, 1).splitlines()
    at = lines.index("  not done   close: closed(box)")
    assert any("`newly`" in line for line in lines[at:])


def test_failure():
    assert said([NOTHING, NOTHING], failed=True)[0].startswith("pack: ended by failure at step 1")


def test_command(tmp_path, capsys):
    path = tmp_path / "a.h5"
    with EpisodeWriter(path, {"reward": {"beta": 1.0}, "chunk": 8}) as out:
        out.append(episode([NOTHING, NOTHING]))
        out.append(episode([NOTHING, NOTHING, APPLE_IN]))
    assert main(["--episode", str(path), "--index", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"episode 1 of 0-1 in {path}\n")
    assert "apple_in: +0.667" in out  # 1 / (1 + 2/4)
    assert main(["--episode", str(path), "--index", "2"]) == 1
    assert "0 to 1; asked for 2" in capsys.readouterr().err
    assert main(["--episode", str(tmp_path / "none.h5")]) == 1
    with pytest.raises(SystemExit) as error:
        main([])
    assert error.value.code == 2


def test_audit_names_what_is_suspicious():
    """Success while the drink is still held: the lid turned true before its turn, and two subtasks never counted."""
    lines = said([NOTHING, [-0.1, -0.1, 1, 0.05]])
    assert [line for line in lines if line.startswith("  audit")] == [
        "  audit      out of order: close turned true before what must come first was complete",
        "  audit      success without all subtasks: drink_in and close incomplete",
    ]
    lines = said([APPLE_IN, APPLE_IN, [-0.1, -0.1, 0, 1.5]])
    assert "  audit      complete at reset: apple_in" in lines
    held = episode([NOTHING, APPLE_IN, [-0.1, -0.1, 0, 1.5], [-0.1, -0.1, 0, 0.05]])
    held.success[:] = False
    assert "  audit      all subtasks complete, but no success" in describe_episode(held, {}, 1).splitlines()


def test_a_file_that_was_changed_is_an_error_in_one_line(tmp_path, capsys):
    path = tmp_path / "a.h5"
    with EpisodeWriter(path, {"chunk": 8}) as out:
        out.append(episode([NOTHING, NOTHING]))
    with h5py.File(path, "a") as file:
        del file["data/demo_0/holds"]
    assert main(["--episode", str(path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"structrl explain: error: {path} was changed since it was written")
    assert len(err.splitlines()) == 1
