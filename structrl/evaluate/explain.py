"""`structrl explain --episode FILE.h5`: which credits an episode earned, and why others did not count."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from structrl.evaluate.words import shortfalls, steps_text
from structrl.lang.explain import condition_text
from structrl.lang.order import spoken
from structrl.lang.programs import tree

if TYPE_CHECKING:
    from structrl.evaluate.episodes import Episode
    from structrl.rewards import EpisodeScore


def describe_episode(episode: "Episode", options: dict[str, Any], chunk: int) -> str:
    """What an episode earned and why, step by step.

    Args:
        episode: a recorded episode.
        options: reward options (fields of RewardOptions) to score it with.
        chunk: environment steps per action chunk, for `clock: chunk`.
    """
    from structrl.rewards import RewardOptions, score_episode

    task, end = episode.task, episode.length
    notes = []
    reward = RewardOptions(**options).resolved()
    unknown = [subtask.label for subtask in task.subtasks if subtask.duration is None]
    if reward.pace == "dynamic" and unknown:
        notes.append(f"{spoken(unknown)} had no duration when this was recorded: paid as `pace: fixed`")
        reward = dataclasses.replace(reward, pace="fixed")
    score = score_episode(
        task,
        episode.holds[1:],
        episode.success[1:],
        holds_at_reset=episode.holds[0],
        chunk=chunk,
        **dataclasses.asdict(reward),
    )
    ending = "success" if episode.succeeded else "failure" if episode.failed else "the horizon, without success"
    lines = [f"{task.name}: ended by {ending} at step {end}; return {float(score.rewards.sum()):.3f}"]
    lines += [f"  note: {note}" for note in notes]

    tick = "chunks" if reward.clock == "chunk" else "steps"
    earned = sorted((int(at), i) for i, at in enumerate(score.credited_at.tolist()) if at > 0)
    for at, i in earned:
        subtask = task.subtasks[i]
        duration = f", T_d = {subtask.duration:g} steps" if subtask.duration is not None else ""
        worth = f", worth {subtask.worth:g}" if subtask.worth != 1 else ""
        lines.append(
            f"  step {at:>4}  {subtask.label}: +{score.pay[i]:.3f}  (T = {score.interval[i]:g} {tick}{duration}{worth})"
        )
        if score.undone[i]:
            held = np.flatnonzero(episode.holds[:, i])
            lines.append(f"             undone: no longer true at the end, last true at step {held[-1]}; the pay stays")
    if score.terminal:
        lines.append(f"  step {end:>4}  success: +{score.terminal:.3f}")
    if not earned and not score.terminal:
        lines.append("  nothing was earned")
    for i, subtask in enumerate(task.subtasks):
        if score.unpaid[i]:
            lines.append(f"  unpaid     {subtask.label}: it was true at reset and stayed so until its turn came")
    lines += [f"  audit      {line}" for line in _audit(episode, score)]
    for i, subtask in enumerate(task.subtasks):
        if not score.complete[i]:
            lines.append(f"  not done   {subtask.label}: {condition_text(task, i)}")
            lines += [f"             {reason}" for reason in _reasons(episode, score, i)]
    return "\n".join(lines)


def _audit(episode: "Episode", score: "EpisodeScore") -> list[str]:
    """Signs of a wrong task file, or of a policy that exploits one; see `structrl.rl.metrics`."""
    task, lines = episode.task, []
    labels = [subtask.label for subtask in task.subtasks]
    if early := [label for label, flag in zip(labels, score.out_of_order.tolist(), strict=True) if flag]:
        lines.append(f"out of order: {spoken(early)} turned true before what must come first was complete")
    if ready := [label for label, flag in zip(labels, score.at_reset.tolist(), strict=True) if flag]:
        lines.append(f"complete at reset: {spoken(ready)}")
    if score.bunched:
        lines.append(f"bunched: {score.bunched} credits came within 0.2 T_d of the one before")
    missing = [label for label, flag in zip(labels, score.complete.tolist(), strict=True) if not flag]
    if episode.succeeded and missing:
        lines.append(f"success without all subtasks: {spoken(missing)} incomplete")
    if not missing and not episode.succeeded:
        lines.append("all subtasks complete, but no success")
    return lines


def _reasons(episode: "Episode", score: "EpisodeScore", i: int) -> list[str]:
    """Why subtask i was not completed."""
    task, holds = episode.task, episode.holds[:, i]
    since, reasons = int(score.eligible[i]), []
    missing = [task.subtasks[j].label for j in task.subtasks[i].prerequisites if not score.complete[j]]
    if since < 0:
        if missing:
            reasons.append(f"its turn never came: {spoken(missing)} must come before it")
        else:
            reasons.append("its turn never came: its prerequisites were not all true at once (gate: held)")
        since, early = 0, np.flatnonzero(holds)
    else:
        reasons.append(f"its turn came at step {since}")
        early = np.flatnonzero(holds[:since])
    if len(early):
        reasons.append(f"true before its turn at {steps_text(early)}, which earns nothing")
    if task.subtasks[i].newly and holds[since:].any():
        reasons.append("true since its turn came without having been false in between, and `newly` asks for that")
    elif holds[since:].any() and score.eligible[i] >= 0:
        reasons.append(f"true at {steps_text(since + np.flatnonzero(holds[since:]))}, but not while the gate was open")
    elif not holds[since:].any():
        program = tree(task.subtasks[i].program)
        reasons += shortfalls(program, episode.atom_tests, episode.atoms, episode.atom_values, since)
    if episode.succeeded:
        reasons.append(f"forfeited: success ended the episode at step {episode.length}")
    return reasons


def print_episode(path: str, index: int) -> int:
    """Explain one episode of a file: 0, or 1 if there is no such file or episode."""
    from structrl.evaluate.episodes import EpisodeFile

    try:
        with EpisodeFile(path) as file:
            episode, meta, count = file[index], file.meta, len(file)
        print(f"episode {index} of 0-{count - 1} in {path}")
        if "reward" not in meta:  # demonstrations, for example
            print("scored with the default reward options: the file names none")
        print(describe_episode(episode, meta.get("reward", {}), meta["chunk"]))
        return 0
    except BrokenPipeError:
        raise
    except (KeyError, TypeError) as error:
        print(f"structrl explain: error: {path} was changed since it was written: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError, IndexError) as error:
        print(f"structrl explain: error: {error}", file=sys.stderr)
        return 1
