"""Evaluation of a whole benchmark suite: every task of it, from every one of the benchmark's stored initial states."""

from typing import Any

from structrl.evaluate.report import rate, rate_text
from structrl.hints import hint
from structrl.seeding import Stream
from structrl.sims.base import Start
from structrl.task import load_task, shipped_tasks

INITS = 50  # stored initial states of every LIBERO task
# Tasks of LIBERO-Long by the steps of their longest demonstration, as StructRL (arXiv 2609.36352) groups them.
HORIZONS = {"libero_10": {"250-340": (1, 3, 4, 5, 7), "340-400": (0, 2, 6), "400-550": (8, 9)}}


def suite_tasks(suite: str) -> list[str]:
    """Names of the shipped task files of a suite, in the benchmark's order.

    Raises:
        ValueError: structrl ships no such suite, or its files do not number their tasks 0, 1, 2, ...
    """
    names = [name for name in shipped_tasks() if name.startswith(f"{suite}/")]
    numbered = {name: load_task(name).sim_args for name in names}
    suites = sorted({name.partition("/")[0] for name in shipped_tasks() if name.startswith("libero_")})
    if not names or any(args.get("suite") != suite for args in numbered.values()):
        raise ValueError(f"no suite '{suite}' of a benchmark{hint(suite, suites)}")
    order = sorted(names, key=lambda name: numbered[name]["task"])
    if [numbered[name]["task"] for name in order] != list(range(len(order))):
        raise ValueError(f"the task files of suite '{suite}' are not one of each of its tasks")
    return order


def suite_starts(tasks: int, inits: int, seed: int, iteration: int) -> list[Start]:
    """Initial states 0 to `inits` - 1 of every task, task by task, so that few models are in memory at a time."""
    return [
        Start(task, init, (seed, int(Stream.EVALUATE), iteration, task * inits + init))
        for task in range(tasks)
        for init in range(inits)
    ]


def summarise_suite(suite: str, tasks: dict[str, Any]) -> dict[str, Any]:
    """Pooled success of a suite and of its groups of horizons, {k, n, low, high}, from the results per task."""
    results = [task["success"] for task in tasks.values()]

    def pooled(rows: Any) -> dict[str, Any]:
        return rate(sum(results[row]["k"] for row in rows), sum(results[row]["n"] for row in rows))

    return {
        "name": suite,
        "total": pooled(range(len(results))),
        "horizons": {name: pooled(rows) for name, rows in HORIZONS.get(suite, {}).items()},
    }


def suite_text(summary: dict[str, Any], tasks: dict[str, Any]) -> str:
    """The summary as a table, one line per task."""
    rows = [(name, task["success"]) for name, task in tasks.items()]
    rows += [(f"longest demonstration {steps} steps", found) for steps, found in summary["horizons"].items()]
    rows.append((f"{summary['name']}, all {len(tasks)} tasks", summary["total"]))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {rate_text(found)}" for name, found in rows)
