"""What kept a condition from being true (torch-free)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.lang.programs import Node, leaves
from structrl.sims.base import AtomTest


def need(test: AtomTest, positive: bool) -> str:
    """What the measured value must be, `< 0.05 m`; the complement for a negated atom."""
    op = test.op if positive else {"<": ">=", ">": "<="}[test.op]
    return f"{op} {test.threshold:g} {test.unit}".rstrip()


def steps_text(steps: NDArray[np.int64]) -> str:
    """Ascending step numbers as ranges: `steps 3-7, 12 and 20-21` (at most four, then `...`)."""
    cuts = np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1)
    ranges = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in cuts]
    if len(ranges) > 4:
        return f"steps {', '.join(ranges[:4])}, ..."
    joined = " and ".join(filter(None, [", ".join(ranges[:-1]), ranges[-1]]))
    return f"{'step' if len(steps) == 1 else 'steps'} {joined}"


def longest_run(flags: NDArray[np.bool_]) -> int:
    """The longest stretch of true values."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return int((ends[1::2] - ends[::2]).max(initial=0))


def shortfalls(
    node: Node,
    tests: tuple[AtomTest, ...],
    atoms: NDArray[np.bool_],
    values: NDArray[np.float64],
    since: int,
) -> list[str]:
    """Why a condition did not become true at any step >= `since`: one line per atom that never was as needed.

    Args:
        node: the condition.
        tests: of the atoms.
        atoms: bool [T+1, A], truth per step.
        values: [T+1, A], measured values, NaN where there is no measure.
        since: first step that would have counted, at most T.

    Returns:
        `in(apple, box): best 0.031 m at step 120, needs < 0 m` for each such atom. If every atom was as needed at some
        step: the latest step with the most of them at once and what was false then, or for how long all of them held.
    """
    if node.kind == "or":
        lines = [shortfalls(part, tests, atoms, values, since) for part in node.parts]
        return [f"{'or' if k else 'either'} {'; '.join(branch)}" for k, branch in enumerate(lines)]

    parts = leaves(node)
    names = [tests[i].text if positive else f"not {tests[i].text}" for i, positive in parts]
    fits = np.stack([atoms[since:, i] == positive for i, positive in parts], 1)  # [steps, leaves]

    def measured(k: Any, step: int) -> str:
        i, positive = parts[k]
        value = f"{values[step, i]:.3g} {tests[i].unit}".rstrip()
        return f"{value} at step {step}, needs {need(tests[i], positive)}"

    found = []
    for k in np.flatnonzero(~fits.any(0)):
        (i, positive), seen = parts[k], values[since:, parts[k][0]]
        if np.isnan(seen).all():
            found.append(f"{names[k]}: never (the simulator has no measure of it)")
            continue
        closest = np.nanargmin if (tests[i].op == "<") == positive else np.nanargmax
        found.append(f"{names[k]}: best {measured(k, since + int(closest(seen)))}")
    if found:
        return found

    together: NDArray[np.bool_] = np.asarray(fits.all(1))
    if together.any():
        return [
            f"its atoms were as needed at {together.sum()} steps, at most {longest_run(together)} in a row: too short"
        ]
    best = len(fits) - 1 - int(fits.sum(1)[::-1].argmax())  # the latest of equals
    false = "; ".join(f"{names[k]}: {measured(k, since + best)}" for k in np.flatnonzero(~fits[best]))
    return [
        "each atom was as needed at some step, but never all at once; "
        f"most of them at step {since + best}, all but {false}"
    ]
