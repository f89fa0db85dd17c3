"""Videos of episodes, with the state of every subtask and the credit earned so far drawn beside the picture.

Knows no simulator: it takes an episode whose observations hold one picture per step. Shapes: T environment steps, h x w
pixels, N subtasks.
"""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from structrl.evaluate.episodes import Episode
from structrl.plan import compile_plan
from structrl.rewards.score import EpisodeScore, score_episode

Frames = NDArray[np.uint8]  # [T+1, h, w, 3]
PANEL, LINE, MARGIN = 230, 19, 8  # pixels
PENDING, ELIGIBLE, DONE, UNPAID, UNDONE = range(5)
# colour and mark of each state; the words are those of the legend
STYLE = {
    PENDING: ("pending", (135, 140, 148)),
    ELIGIBLE: ("its turn", (240, 200, 70)),
    DONE: ("credited", (90, 200, 110)),
    UNPAID: ("unpaid", (110, 165, 235)),
    UNDONE: ("undone", (235, 95, 85)),
}
TEXT, BACKGROUND = (235, 237, 240), (28, 31, 36)


def pictures(episode: Episode) -> Frames:
    """The frames of an episode: its first camera.

    Raises:
        ValueError: it has none, or not one of every step.
    """
    names = sorted(name for name in episode.observation if name.startswith("images."))
    if not names or len(episode.obs_at) != episode.length + 1:
        raise ValueError(f"the episode of '{episode.task.name}' does not hold a picture of every step")
    return np.ascontiguousarray(episode.observation[names[0]].transpose(0, 2, 3, 1))


def timeline(episode: Episode, score: EpisodeScore) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """State of each subtask [T+1, N] and credit so far [T+1], after each step; row 0 is at reset."""
    time_T1 = np.arange(episode.length + 1)[:, None]
    at_N, eligible_N = score.credited_at.numpy(), score.eligible.numpy()
    pulse_N = compile_plan(episode.task).pulse.numpy()
    open_TN = (eligible_N >= 0) & (time_T1 >= eligible_N)
    credited_TN = (at_N > 0) & (time_T1 >= at_N)
    state_TN = np.where(open_TN, ELIGIBLE, PENDING)
    state_TN = np.where(open_TN & score.unpaid.numpy(), UNPAID, state_TN)
    state_TN = np.where(credited_TN, np.where(episode.holds | pulse_N, DONE, UNDONE), state_TN)
    credit_T = (credited_TN * score.pay.numpy()).sum(1)
    credit_T[-1] += score.terminal
    return state_TN, credit_T


def annotate(episode: Episode, frames: Frames, reward: dict[str, Any], chunk: int, title: str = "") -> Frames:
    """Frames with a panel on the right: command, subtasks and their state, credit, step.

    Args:
        episode: what happened.
        frames: [T+1, h, w, 3].
        reward: options of `score_episode`.
        chunk: environment steps per action chunk.
        title: first line.
    """
    score = score_episode(
        episode.task, episode.holds[1:], episode.success[1:], holds_at_reset=episode.holds[0], chunk=chunk, **reward
    )
    state_TN, credit_T = timeline(episode, score)
    labels = [subtask.label for subtask in episode.task.subtasks]
    height = max(frames.shape[1], (len(labels) + 5) * LINE + 2 * MARGIN)
    # the common codec wants even sizes
    canvas = np.full(
        (len(frames), height + height % 2, -(-(frames.shape[2] + PANEL) // 2) * 2, 3), BACKGROUND, np.uint8
    )
    canvas[:, : frames.shape[1], : frames.shape[2]] = frames
    font = ImageFont.load_default(13)
    for t, page in enumerate(canvas):
        image = Image.fromarray(page)
        draw = ImageDraw.Draw(image)
        x, y = frames.shape[2] + MARGIN, MARGIN
        end = ""
        if t == episode.length:
            end = "success" if episode.succeeded else "failed" if episode.failed else "time is up"
        draw.text((x, y), _fit(draw, title or episode.task.name, PANEL - 2 * MARGIN, font), TEXT, font)
        draw.text((x, y + LINE), f"step {t} of {episode.length}  {end}", TEXT, font)
        y += 5 * LINE // 2
        for i, label in enumerate(labels):
            word, colour = STYLE[state_TN[t, i]]
            draw.rectangle((x, y + 3, x + 9, y + 12), colour if state_TN[t, i] != PENDING else None, colour)
            draw.text((x + 16, y), _fit(draw, f"{label}", PANEL - 96, font), TEXT, font)
            draw.text((x + PANEL - 74, y), word, colour, font)
            y += LINE
        draw.text((x, y + LINE // 2), f"credit {credit_T[t]:.2f}", TEXT, font)
        canvas[t] = np.asarray(image)
    return canvas


def _fit(draw: ImageDraw.ImageDraw, text: str, width: int, font: Any) -> str:
    while len(text) > 1 and draw.textlength(text, font) > width:
        text = text[:-2] + "…"
    return text


def write_mp4(path: Path, frames: Frames, fps: float) -> None:
    """Write an H.264 video; the last frame stays for a second.

    Raises:
        ImportError: PyAV is missing; the message names the command that installs it.
    """
    require_av()
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with av.open(str(part), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=round(fps), options={"crf": "22"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for page in [*frames, *[frames[-1]] * round(fps)]:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(page, format="rgb24")))
        container.mux(stream.encode())
    os.replace(part, path)


def require_av() -> None:
    """Complain before the work if videos cannot be written.

    Raises:
        ImportError: PyAV is missing; the message names the command that installs it.
    """
    try:
        import av  # noqa: F401
    except ImportError:
        raise ImportError("videos are written with PyAV: pip install 'structrl[video]'") from None


def gif(frames: Frames, fps: float) -> bytes:
    """An animated GIF: what TensorBoard shows as a moving image."""
    pages = [Image.fromarray(page).quantize(64) for page in frames]
    out = io.BytesIO()
    pages[0].save(out, "GIF", save_all=True, append_images=pages[1:], duration=round(1000 / fps), loop=0)
    return out.getvalue()
