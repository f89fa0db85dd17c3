"""Confidence intervals of success rates (no dependency beyond the standard library)."""

import math


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion, `k` successes in `n` trials.

    Unlike the normal approximation it stays inside [0, 1] and is not empty at k = 0 or k = n.

    Args:
        k: successes, 0 <= k <= n.
        n: trials; 0 gives the whole range (0, 1).
        z: normal quantile, 1.96 for 95 %.

    Returns:
        (low, high), containing k / n.

    Raises:
        ValueError: k is negative or exceeds n.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    if not 0 <= k <= n:
        raise ValueError(f"wilson needs 0 <= k <= n, got k={k}, n={n}")
    if n == 0:
        return 0.0, 1.0
    p, z2 = k / n, z * z
    centre = p + z2 / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    scale = 1 + z2 / n
    # At k = 0 and k = n the bound is exactly 0 or 1; rounding must not move it past k / n.
    low = 0.0 if k == 0 else (centre - half) / scale
    high = 1.0 if k == n else (centre + half) / scale
    return low, high


def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether two closed intervals share a point."""
    return a[0] <= b[1] and b[0] <= a[1]
