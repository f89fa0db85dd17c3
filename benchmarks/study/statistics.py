"""Statistics of paired blocks: area under success, steps to a success rate, sign-flip test, t-intervals."""

import itertools
import math
import statistics
from collections.abc import Sequence

Curve = Sequence[tuple[float, float]]  # (environment steps, success), ascending

# two-sided 95 % quantiles of Student's t, by degrees of freedom
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def area(curve: Curve, until: float) -> float:
    """Mean success from the curve's first point to `until` environment steps: trapezoids, the last one cut there.

    Raises:
        ValueError: the curve ends before.
    """
    if curve[-1][0] < until:
        raise ValueError(f"the curve ends at {curve[-1][0]:g} steps, before {until:g}")
    total = 0.0
    for (a, u), (b, v) in itertools.pairwise(curve):
        end = min(b, until)
        if end > a:
            at_end = u + (v - u) * (end - a) / (b - a)
            total += (u + at_end) / 2 * (end - a)
    return total / (until - curve[0][0])


def steps_to(curve: Curve, level: float) -> float | None:
    """Environment steps at which success first reaches `level`, linear between evaluations; None if it never does."""
    if curve[0][1] >= level:
        return curve[0][0]
    for (a, u), (b, v) in itertools.pairwise(curve):
        if v >= level:
            return a + (b - a) * (level - u) / (v - u)
    return None


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p of the paired sign-flip test of the mean, exact: all 2^n signs (n up to about 20)."""
    observed = abs(sum(differences))
    signs = itertools.product((1, -1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(row, differences, strict=True))) for row in signs]
    return sum(x >= observed - 1e-12 for x in sums) / len(sums)


def t_interval(x: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of 2 to 16 values."""
    half = T95[len(x) - 2] * statistics.stdev(x) / math.sqrt(len(x))
    return statistics.mean(x) - half, statistics.mean(x) + half
