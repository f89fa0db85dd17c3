"""`structrl calibrate TASK --demos FILE.h5`: reference durations T_d from demonstrations.

T_d of a subtask is the mean, over the demonstrations that earned its credit, of the time T that the reward would price
that credit with: demonstration pace then pays about beta / 2 for each subtask.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from structrl.evaluate.episodes import Episode, EpisodeFile
from structrl.lang.format import set_durations
from structrl.lang.spec import TaskSpec
from structrl.rewards import score_episode
from structrl.task import load_task

Interval = Literal["credit", "prerequisites"]
METHODS = {"credit": "since the last credit", "prerequisites": "since the last prerequisite"}


@dataclass(frozen=True)
class Measured:
    """Times T of one subtask's credits, in environment steps.

    Attributes:
        times: one per demonstration that earned the credit.
        unpaid: demonstrations in which the subtask was complete without a credit (true since reset).
    """

    label: str
    times: tuple[int, ...]
    unpaid: int = 0

    @property
    def mean(self) -> float:
        """T_d, to a tenth of a step."""
        return round(statistics.fmean(self.times), 1)

    def comment(self, interval: Interval) -> str:
        """What stands beside the duration in the task file."""
        return (
            f"mean {self.mean:g}, median {statistics.median(self.times):g} of {len(self.times)} demonstrations, "
            f"{METHODS[interval]}"
        )


def measure(task: TaskSpec, episodes: Iterable[Episode], interval: Interval = "credit") -> list[Measured]:
    """The times of every subtask's credits.

    Args:
        task: the task whose plan orders the subtasks.
        episodes: demonstrations of it; conditions are taken as they were recorded.
        interval: T from the last credit of any subtask (what the reward does by default), or from the last of the
            subtask's own prerequisites (the paper's wording; `reward.since: eligible`).

    Raises:
        ValueError: the demonstrations' conditions are not those of the task; a subtask that none of them completed.
    """
    times: list[list[int]] = [[] for _ in task.subtasks]
    unpaid = [0] * len(task.subtasks)
    meant = [(s.label, s.condition, s.program) for s in task.subtasks]
    count = 0
    for episode in episodes:
        recorded = [(s.label, s.condition, s.program) for s in episode.task.subtasks]
        if recorded != meant or episode.task.atoms != task.atoms:
            raise ValueError(
                f"{task.path}: its conditions are not those the demonstrations were recorded with "
                f"({'; '.join(f'{label}: {condition}' for label, condition, _ in recorded)}); record them again"
            )
        score = score_episode(
            task,
            episode.holds[1:],
            episode.success[1:],
            holds_at_reset=episode.holds[0],
            pace="fixed",  # T does not depend on the durations that are to be found
            since="credit" if interval == "credit" else "eligible",
        )
        for i, at in enumerate(score.credited_at.tolist()):
            if at > 0:
                times[i].append(round(float(score.interval[i])))
            unpaid[i] += bool(score.unpaid[i])
        count += 1
    if count == 0:
        raise ValueError("no demonstrations to measure")
    found = [Measured(s.label, tuple(t), u) for s, t, u in zip(task.subtasks, times, unpaid, strict=True)]
    never = [m.label for m in found if not m.times]
    if never:
        raise ValueError(
            f"{task.path}: no credit for {', '.join(never)} in any of {count} demonstrations, so there is no duration "
            "to measure; `structrl explain --episode FILE.h5` says why"
        )
    return found


def table(found: list[Measured], task: TaskSpec) -> str:
    """The measured durations beside those of the file."""
    rows = [("subtask", "mean", "median", "min", "max", "count", "unpaid", "in file")]
    for m, subtask in zip(found, task.subtasks, strict=True):
        now = "-" if subtask.duration is None else f"{subtask.duration:g}"
        spread = (f"{statistics.median(m.times):g}", str(min(m.times)), str(max(m.times)))
        rows.append((m.label, f"{m.mean:.1f}", *spread, str(len(m.times)), str(m.unpaid), now))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="structrl calibrate", description=__doc__)
    parser.add_argument("task", metavar="TASK", help="a .task file, or the name of one of structrl's")
    parser.add_argument("--demos", type=Path, required=True, metavar="FILE.h5", help="from structrl demos")
    parser.add_argument("--interval", choices=list(METHODS), default="credit", help="where T begins (default: credit)")
    parser.add_argument("--write", action="store_true", help="write the means into the task file")
    args = parser.parse_args(argv)
    try:
        task = load_task(args.task)
        with EpisodeFile(args.demos) as file:
            found = measure(task, (episode for episode in file if episode.task.name == task.name), args.interval)
        print(f"{task.name}: T in environment steps, {METHODS[args.interval]}\n\n{table(found, task)}")
        if args.write:
            path = Path(args.task)
            if not path.is_file():
                raise ValueError(
                    f"cannot write durations: {task.path} is not a file of yours; copy it: structrl init DIR"
                )
            durations = {m.label: (m.mean, m.comment(args.interval)) for m in found}
            path.write_text(set_durations(path.read_text(), durations, str(path)))
            print(f"\nwritten to {path}")
        else:
            print(f"\nnot written; add --write to put the means into {task.path}")
    except (OSError, ValueError) as error:
        print(f"structrl calibrate: error: {error}", file=sys.stderr)
        return 1
    return 0
