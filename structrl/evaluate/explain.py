"""`structrl explain`: a task in words; `--episode FILE.h5`: which credits it earned, and why others did not count."""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from structrl.evaluate.words import shortfalls, steps_text, text, tree
from structrl.lang.spec import TaskSpec

if TYPE_CHECKING:
    from structrl.evaluate.episodes import Episode
    from structrl.rewards import EpisodeScore


def listing(names: list[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def order_sentence(task: TaskSpec) -> str:
    """The order of the plan in one sentence, from the prerequisites alone."""
    labels = [subtask.label for subtask in task.subtasks]
    before = [set(subtask.prerequisites) for subtask in task.subtasks]
    stages: list[list[int]] = []
    while (earlier := {i for stage in stages for i in stage}) != set(range(len(labels))):
        stages.append([i for i in range(len(labels)) if i not in earlier and before[i] <= earlier])
        if any(before[i] != earlier for i in stages[-1]):
            return "Partial order: each subtask says what must come before it."
    parts = [listing([labels[i] for i in stage]) + (" in any order" if len(stage) > 1 else "") for stage in stages]
    return "Order: " + ", then ".join(parts) + "."


def direct(task: TaskSpec, i: int) -> list[str]:
    """Labels of the prerequisites of subtask i that are not implied by others (the plan stores all of them)."""
    mine = task.subtasks[i].prerequisites
    implied = {k for j in mine for k in task.subtasks[j].prerequisites}
    return [task.subtasks[j].label for j in mine if j not in implied]


def condition_text(task: TaskSpec, i: int) -> str:
    """The condition of subtask i as written and, where that uses verbs or names of its own, as tested."""
    subtask = task.subtasks[i]
    tested = text(tree(subtask.program), task.atoms)
    return tested if subtask.condition == tested else f"{subtask.condition}, that is {tested}"


def describe_task(task: TaskSpec, control_hz: float | None = None, meanings: dict[str, str] | None = None) -> str:
    """A task in English sentences.

    Args:
        task: the task.
        control_hz: steps per second of its simulator, to add seconds to steps.
        meanings: what its simulator's predicates mean, by name.
    """

    def steps(count: float) -> str:
        return f"{count:g} steps" + (f" ({count / control_hz:.3g} s)" if control_hz else "")

    lines = [f"{task.name}  ({task.path})"]
    lines += [f'  Instruction to the policy: "{task.command}"'] if task.command else []
    arguments = ", ".join(f"{key}={value!r}" for key, value in task.sim_args.items())
    lines += [f"  Runs in {task.sim}({arguments})."] if task.sim else []
    lines += [f"  An episode ends after {steps(task.horizon)} at the latest."] if task.horizon else []
    lines += [f"  {order_sentence(task)}", ""]
    for i, subtask in enumerate(task.subtasks):
        lines.append(f"  {i + 1}. {subtask.label}: done when {condition_text(task, i)}")
        needed = direct(task, i)
        lines.append(f"     It counts only after {listing(needed)}." if needed else "     It may come at any time.")
        if subtask.newly:
            lines.append("     It must become true after its turn has come; having been true before is not enough.")
        if subtask.duration is None:
            lines.append("     It has no reference duration yet (structrl calibrate measures it).")
        else:
            lines.append(
                f"     Reference duration {steps(subtask.duration)}: that pace pays half of the most possible."
            )
        if subtask.worth != 1:
            lines.append(f"     Its pay is multiplied by {subtask.worth:g}.")
    lines.append("")
    if task.success:
        lines.append(f"  Success, which ends the episode: {text(tree(task.success), task.atoms)}")
    if task.fail:
        lines.append(f"  Failure, which ends the episode unpaid: {text(tree(task.fail), task.atoms)}")
    used = dict.fromkeys(atom.predicate for atom in task.atoms)
    lines += [f"  {name}: {meanings[name]}." for name in used if meanings and name in meanings]
    return "\n".join(lines).rstrip()


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
        notes.append(f"{listing(unknown)} had no duration when this was recorded: paid as `pace: fixed`")
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
    for i, subtask in enumerate(task.subtasks):
        if not score.complete[i]:
            lines.append(f"  not done   {subtask.label}: {condition_text(task, i)}")
            lines += [f"             {reason}" for reason in _reasons(episode, score, i)]
    return "\n".join(lines)


def _reasons(episode: "Episode", score: "EpisodeScore", i: int) -> list[str]:
    """Why subtask i was not completed."""
    task, holds = episode.task, episode.holds[:, i]
    since, reasons = int(score.eligible[i]), []
    missing = [task.subtasks[j].label for j in task.subtasks[i].prerequisites if not score.complete[j]]
    if since < 0:
        if missing:
            reasons.append(f"its turn never came: {listing(missing)} must come before it")
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


def _vocabulary(sim: str | None) -> tuple[float | None, dict[str, str]]:
    """Control rate of a simulator; meaning and default test of its predicates."""
    if sim is None:
        return None, {}
    from structrl.sims.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(sim)
    meanings = {
        name: f"{p.meaning}; {p.measure} {p.op} {p.threshold:g} {p.unit}".rstrip() if p.measure else p.meaning
        for name, p in vocabulary.predicates.items()
    }
    return vocabulary.control_hz, meanings


def main(argv: list[str]) -> int:
    """The command; torch is imported for `--episode` only."""
    parser = argparse.ArgumentParser(prog="structrl explain", description=__doc__)
    parser.add_argument("task", nargs="?", metavar="TASK", help="a .task file, or the name of one of structrl's")
    parser.add_argument("--episode", type=Path, metavar="FILE.h5", help="an episode file: demos, evaluate")
    parser.add_argument("--index", type=int, default=0, metavar="i", help="which of its episodes (default: 0)")
    args = parser.parse_args(argv)
    if (args.task is None) == (args.episode is None):
        parser.error("give either a TASK or --episode FILE.h5")
    try:
        if args.task is not None:
            from structrl.task import load_task

            task = load_task(args.task)
            print(describe_task(task, *_vocabulary(task.sim)))
            return 0
        from structrl.evaluate.episodes import EpisodeFile

        with EpisodeFile(args.episode) as file:
            episode, meta, count = file[args.index], file.meta, len(file)
        print(f"episode {args.index} of 0-{count - 1} in {args.episode}")
        if "reward" not in meta:  # demonstrations, for example
            print("scored with the default reward options: the file names none")
        print(describe_episode(episode, meta.get("reward", {}), meta["chunk"]))
        return 0
    except BrokenPipeError:
        raise
    except (OSError, ValueError, IndexError) as error:
        print(f"structrl explain: error: {error}", file=sys.stderr)
        return 1
