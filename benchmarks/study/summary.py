"""summary.md: what results.csv says."""

import math
import statistics

from benchmarks.study.arms import ARMS, COMPARISONS
from benchmarks.study.results import OUT_OF_ORDER, STRETCH, TIMES, TRAINING, Results
from benchmarks.study.statistics import area, sign_flip, steps_to, t_interval

LEVEL = 0.2


def _table(head: str, rows: list[str]) -> list[str]:
    return [f"| {head} |", "|" + "---|" * (head.count("|") + 1), *(f"| {row} |" for row in rows), ""]


def _interval(x: list[float]) -> str:
    if len(x) < 2:
        return "one block"
    low, high = t_interval(x)
    return f"[{low:+.4f}, {high:+.4f}]"


def summarise(results: Results, unfinished: list[str]) -> str:
    """Tables of arms, comparisons within blocks, subtasks and time."""
    success = {key: metrics["success"] for key, metrics in results.items()}
    until = min(curve[-1][0] for curve in success.values())
    areas = {key: area(curve, until) for key, curve in success.items()}
    final = {key: curve[-1][1] for key, curve in success.items()}
    best = {key: max(y for _, y in curve) for key, curve in success.items()}
    arms = {arm: blocks for arm in ARMS if (blocks := sorted(b for a, b in success if a == arm))}

    def mean(of: dict[tuple[str, int], float], arm: str) -> float:
        return statistics.mean(of[arm, block] for block in arms[arm])

    lines = [
        f"Written by `python -m benchmarks.study TASK --report`. Area: mean success up to {until:.0f} environment "
        "steps, the shortest run's end. Success: of 256 episodes of the deterministic policy at an evaluation; best: "
        "the largest of a run's evaluations, so biased upwards, for every arm alike.",
        "",
    ]
    if unfinished:
        lines += [f"Not finished, not in here: {', '.join(unfinished)}.", ""]
    rows = []
    for arm, blocks in arms.items():
        reached = [s for b in blocks if (s := steps_to(success[arm, b], LEVEL)) is not None]
        middle = statistics.median(reached + [math.inf] * (len(blocks) - len(reached)))
        rows.append(
            f"{arm} | {len(blocks)} ({', '.join(map(str, blocks))})"
            f" | {mean(areas, arm):.4f} | {mean(final, arm):.3f}"
            f" | {mean(best, arm):.3f} | {'never' if middle == math.inf else round(middle)}; "
            f"{len(reached)}/{len(blocks)}"
        )
    head = f"arm | blocks | area | final success | best | steps to {100 * LEVEL:.0f} % (median; reached by)"
    lines += ["## Arms", "", *_table(head, rows)]

    rows, pairs = [], []
    for a, b in COMPARISONS:
        blocks = [block for block in arms.get(a, []) if (b, block) in success]
        if not blocks:
            continue
        by_area = [areas[a, block] - areas[b, block] for block in blocks]
        by_end = [final[a, block] - final[b, block] for block in blocks]
        p = f"{sign_flip(by_area):.4f}" if len(blocks) > 1 else "-"
        rows.append(
            f"{a} - {b} | {len(blocks)} | {statistics.mean(by_area):+.4f} | {_interval(by_area)} | {p} | "
            f"{statistics.mean(by_end):+.3f} | {_interval(by_end)}"
        )
        for block in blocks:
            steps = [steps_to(success[arm, block], LEVEL) for arm in (a, b)]
            told = [
                f"{s:.0f}" if s is not None else f"> {success[arm, block][-1][0]:.0f}"
                for s, arm in zip(steps, (a, b), strict=True)
            ]
            ratio = "censored" if None in steps else f"{steps[1] / steps[0]:.2f}" if steps[0] else "from the start"
            pairs.append(
                f"{a} / {b} | {block} | {areas[a, block]:.4f} / {areas[b, block]:.4f} | {' / '.join(told)} | {ratio}"
            )
    head = "difference | blocks | area | 95 % t-interval | sign-flip p | final success | 95 % t-interval"
    lines += ["## Comparisons within blocks", "", *_table(head, rows)]
    lines += [*_table(f"pair | block | area | steps to {100 * LEVEL:.0f} % | second / first", pairs)]

    names = sorted({m for metrics in results.values() for m in metrics if m.startswith("subtask/")})
    if names:
        order = next(iter(results.values()))
        names = [m for m in order if m in names]
        rows = []
        for arm, blocks in arms.items():
            means = [statistics.mean(results[arm, b][m][-1][1] for b in blocks) for m in names]
            early = statistics.mean(results[arm, b][OUT_OF_ORDER][-1][1] for b in blocks)
            rows.append(f"{arm} | " + " | ".join(f"{x:.2f}" for x in means) + f" | {early:.2f}")
        head = " | ".join(["arm", *(m.split("/")[1] for m in names), "out of order, per episode"])
        lines += ["## Subtasks at the end", "", "Share of episodes that completed each.", "", *_table(head, rows)]
    rows = []
    for arm, blocks in arms.items():
        for tag in TRAINING:
            curves = [results[arm, b][tag] for b in blocks if tag in results[arm, b]]
            if curves:
                means = [statistics.mean(y for _, y in points) for points in zip(*curves, strict=True)]
                rows.append(f"{arm} | {tag} | {', '.join(f'{x:.4g}' for x in means)}")
    if rows:
        lines += ["## While training", "", f"Means over stretches of {STRETCH} iterations.", ""]
        lines += _table("arm | metric | by stretch", rows)
    timed = [arm for arm in arms if all(t in results[arm, b] for b in arms[arm] for t in TIMES)]
    if timed:
        rows = [
            f"{arm} | "
            + " | ".join(f"{statistics.mean(results[arm, b][t][-1][1] for b in arms[arm]):.2f}" for t in TIMES)
            for arm in timed
        ]
        head = " | ".join(["arm", *(f"{t.removeprefix('time/')} s" for t in TIMES)])
        lines += ["## Time of an iteration", "", "Beside other jobs.", "", *_table(head, rows)]
    return "\n".join(lines)
