"""`structrl explain TASK`: a task in English, its order as an outline or a Mermaid graph. No numpy, no torch."""

import argparse
import sys

from structrl.lang.commands import read
from structrl.lang.diagnostics import TaskError
from structrl.lang.order import direct, mermaid, order_sentence, outline, spoken
from structrl.lang.programs import text, tree
from structrl.lang.spec import TaskSpec
from structrl.sims.vocabulary import load_vocabulary
from structrl.task import parse_task


def condition_text(task: TaskSpec, i: int) -> str:
    """The condition of subtask i as written and, where that uses verbs or names of its own, as tested."""
    subtask = task.subtasks[i]
    tested = text(tree(subtask.program), task.atoms)
    return tested if subtask.condition == tested else f"{subtask.condition}, that is {tested}"


def describe_task(
    task: TaskSpec, control_hz: float | None = None, meanings: dict[str, str] | None = None, own_success: str = ""
) -> str:
    """A task in English sentences.

    Args:
        task: the task.
        control_hz: steps per second of its simulator, to add seconds to steps.
        meanings: what its simulator's predicates mean, by name.
        own_success: its simulator's own check, if that is known; a task's own comes first.
    """

    def steps(count: float) -> str:
        return f"{count:g} steps" + (f" ({count / control_hz:.3g} s)" if control_hz else "")

    lines = [f"{task.name}  ({task.path})"]
    lines += [f'  Instruction to the policy: "{task.command}"'] if task.command else []
    arguments = ", ".join(f"{key}={value!r}" for key, value in task.sim_args.items())
    lines += [f"  Runs in {task.sim}({arguments})."] if task.sim else []
    lines += [f"  An episode ends after {steps(task.horizon)} at the latest."] if task.horizon else []
    lines += [f"  {order_sentence(task)}"]
    lines += [f"    {line}" for line in outline(task)] if any(each.prerequisites for each in task.subtasks) else []
    lines += [""]
    for i, subtask in enumerate(task.subtasks):
        lines.append(f"  {i + 1}. {subtask.label}: done when {condition_text(task, i)}")
        needed = direct(task, i)
        lines.append(f"     It counts only after {spoken(needed)}." if needed else "     It may come at any time.")
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
    elif own_success:
        lines.append(f"  Success, by {task.sim}'s own check, which ends the episode: {own_success}")
    if task.fail:
        lines.append(f"  Failure, which ends the episode unpaid: {text(tree(task.fail), task.atoms)}")
    used = dict.fromkeys(atom.predicate for atom in task.atoms)
    lines += [f"  {name}: {meanings[name]}." for name in used if meanings and name in meanings]
    return "\n".join(lines).rstrip()


def _vocabulary(task: TaskSpec) -> tuple[float | None, dict[str, str], str]:
    """Control rate of a task's simulator; meaning and default test of its predicates; its own check of success."""
    if task.sim is None:
        return None, {}, ""
    vocabulary = load_vocabulary(task.sim)
    meanings = {
        name: f"{p.meaning}; {p.measure} {p.op} {p.threshold:g} {p.unit}".rstrip() if p.measure else p.meaning
        for name, p in vocabulary.predicates.items()
    }
    return vocabulary.control_hz, meanings, vocabulary.success(vocabulary.scene(task.sim_args))


def explain(argv: list[str]) -> int:
    """The command: 0 explained, 1 a task has errors, 2 a file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="structrl explain",
        description="A task in words. --episode FILE.h5: which credits it earned, and why others did not count.",
    )
    parser.add_argument(
        "tasks", nargs="*", metavar="TASK", help="a .task file, one of structrl's tasks, or - for stdin"
    )
    help_ = "text: in English (default); ascii: the order as an outline; mermaid: the order as a Mermaid graph"
    parser.add_argument("--format", choices=("text", "ascii", "mermaid"), default="text", help=help_)
    parser.add_argument("--episode", metavar="FILE.h5", help="an episode file: demos, evaluate")
    parser.add_argument("--index", type=int, default=0, metavar="i", help="which of its episodes (default: 0)")
    args = parser.parse_args(argv)
    if bool(args.tasks) == (args.episode is not None):
        parser.error("give either TASKs or --episode FILE.h5")
    if args.episode is not None:
        from structrl.evaluate.explain import print_episode  # numpy, h5py, torch

        return print_episode(args.episode, args.index)
    code = 0
    shown = False
    for name in args.tasks:
        try:
            path, source = read(name)
            task = parse_task(source, path)
        except TaskError as error:
            print(error, file=sys.stderr)
            code = max(code, 1)
            continue
        except OSError as error:
            print(f"structrl explain: error: {name}: {error.strerror or error}", file=sys.stderr)
            code = 2
            continue
        if shown:
            print()
        shown = True
        if args.format == "mermaid":
            print(mermaid(task))
        elif args.format == "ascii":
            print("\n".join(outline(task)))
        else:
            print(describe_task(task, *_vocabulary(task)))
    return code
