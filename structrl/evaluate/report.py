"""What evaluation episodes say: counts with Wilson intervals, as JSON, as a table, and beside an earlier result."""

import json
import statistics
from pathlib import Path
from typing import Any

from tensordict import TensorDict

from structrl import keys
from structrl.evaluate.intervals import overlap, wilson
from structrl.plan import StackedPlans

FORMAT = "structrl-evaluation-1"


def rate(k: int, n: int) -> dict[str, Any]:
    """`k` of `n` with its 95 % Wilson interval."""
    low, high = wilson(k, n)
    return {"k": k, "n": n, "low": low, "high": high}


def summarise(table: TensorDict, plans: StackedPlans) -> dict[str, Any]:
    """Results per task of the table of `run_episodes`.

    Returns:
        task name -> `success` and per subtask `completed` as {k, n, low, high}; `unpaid` of the completed; `undone`;
        `median_step` of the credits (None without any); `failed` episodes; mean return and length.
    """
    results: dict[str, Any] = {}
    for row, name in enumerate(plans.task_names):
        mine = table[table[keys.TASK] == row]
        n = len(mine)
        if not n:
            raise RuntimeError(f"no episode of task '{name}' was run to its end: all were dropped with their workers")
        subtasks = {}
        for i, label in enumerate(plans.names[row]):
            steps = [at for at in mine["credited_at"][:, i].tolist() if at >= 0]
            subtasks[label] = {
                "completed": rate(int(mine["complete"][:, i].sum()), n),
                "unpaid": int(mine["unpaid"][:, i].sum()),
                "undone": int(mine["undone"][:, i].sum()),
                "median_step": statistics.median(steps) if steps else None,
            }
        results[name] = {
            "path": plans.paths[row],
            "success": rate(int(mine[keys.SUCCESS].sum()), n),
            "failed": int(mine[keys.FAILED].sum()),
            "mean_return": mine["return"].double().mean().item(),
            "mean_length": mine["length"].double().mean().item(),
            "subtasks": subtasks,
        }
    return results


def rate_text(r: dict[str, Any]) -> str:
    """`143/200  71.5 % [64.9, 77.3]`."""
    return f"{r['k']:>4}/{r['n']:<4} {100 * r['k'] / r['n']:5.1f} % [{100 * r['low']:5.1f}, {100 * r['high']:5.1f}]"


def table_text(tasks: dict[str, Any]) -> str:
    """The results as a table, one block per task."""
    lines = []
    for name, task in tasks.items():
        lines += [f"{name}: mean return {task['mean_return']:.2f}, mean length {task['mean_length']:.0f} steps"]
        width = max(map(len, ["success", *task["subtasks"]]))
        lines.append(f"  {'':<{width}}       k/n     rate   95 % interval    median step  unpaid  undone")
        lines.append(f"  {'success':<{width}}  {rate_text(task['success'])}")
        for label, s in task["subtasks"].items():
            step = "-" if s["median_step"] is None else f"{s['median_step']:g}"
            lines.append(
                f"  {label:<{width}}  {rate_text(s['completed'])}  {step:>12}  {s['unpaid']:>6}  {s['undone']:>6}"
            )
        if task["failed"]:
            lines.append(f"  {task['failed']} episodes ended by failure")
    return "\n".join(lines)


def compare_text(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Two reports side by side, and whether the intervals of each rate overlap.

    Raises:
        ValueError: they share no task.
    """
    shared = [name for name in after["tasks"] if name in before["tasks"]]
    if not shared:
        raise ValueError(
            f"nothing to compare: the earlier result is of {', '.join(before['tasks'])}, this one of "
            f"{', '.join(after['tasks'])}"
        )
    lines = []
    for name in shared:
        old, new = before["tasks"][name], after["tasks"][name]
        rows = [("success", old["success"], new["success"])]
        labels = [label for label in new["subtasks"] if label in old["subtasks"]]
        rows += [(label, old["subtasks"][label]["completed"], new["subtasks"][label]["completed"]) for label in labels]
        width = max(len(row[0]) for row in rows)
        lines += [f"{name}", f"  {'':<{width}}  {'before':^{len(rate_text(rows[0][1]))}}     after"]
        for label, a, b in rows:
            apart = not overlap((a["low"], a["high"]), (b["low"], b["high"]))
            change = "intervals overlap"
            if apart:
                change = f"{'higher' if b['k'] / b['n'] > a['k'] / a['n'] else 'lower'}, intervals do not overlap"
            lines.append(f"  {label:<{width}}  {rate_text(a)}  {rate_text(b)}  {change}")
    same = [before[key] == after[key] for key in ("seed", "episodes")]
    lines.append("the same starts in both" if all(same) else "other starts in the two (seed or episodes differ)")
    worlds = [{k: v for k, v in r["config"]["env"].items() if k != "num_envs"} for r in (before, after)]
    changed = [k for k in {**worlds[0], **worlds[1]} if worlds[0].get(k) != worlds[1].get(k)]
    if changed:
        lines.append("note: the environments differ in " + ", ".join(f"env.{key}" for key in changed))
    return "\n".join(lines)


def read_report(path: Path) -> dict[str, Any]:
    """An earlier result.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is something else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no result {path}; write one with structrl evaluate ... --output {path}")
    try:
        report = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a result of structrl evaluate: {error}") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise ValueError(f"{path} is not a result of structrl evaluate (format {FORMAT})")
    try:
        compare_text(report, report)  # reads everything that a comparison reads
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{path} was changed since structrl evaluate wrote it: {error!r}; write it again") from None
    return report
