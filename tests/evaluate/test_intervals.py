import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structrl.evaluate.intervals import overlap, wilson


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        # k = n/2: p = 1/2 stays the centre; half-width z / (2 sqrt(n + z^2)), by hand from the definition
        (50, 100, 0.5 - 0.98 / math.sqrt(103.8416), 0.5 + 0.98 / math.sqrt(103.8416)),
        # k = 0: (0, z^2 / (n + z^2))
        (0, 10, 0.0, 3.8416 / 13.8416),
        (10, 10, 10 / 13.8416, 1.0),
        # Newcombe (1998), Statistics in Medicine 17, table I, method 3: printed to four digits
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_known_values(k, n, low, high):
    got = wilson(k, n, z=1.96 if n in (10, 100) else 1.959964)
    assert got == pytest.approx((low, high), abs=5.1e-5)


def test_no_trials_say_nothing():
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (1, 0)])
def test_impossible_counts(k, n):
    with pytest.raises(ValueError, match=rf"k={k}, n={n}"):
        wilson(k, n)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_bounds_solve_the_score_equation(kn):
    """Independent oracle: each inner bound p satisfies (k/n - p)^2 = z^2 p (1 - p) / n."""
    k, n = kn
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1
    for bound in (low, high):
        assert (k / n - bound) ** 2 == pytest.approx(1.96**2 * bound * (1 - bound) / n, abs=1e-9)
    mirrored = wilson(n - k, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)


def test_overlap():
    assert overlap((0.1, 0.3), (0.3, 0.5))
    assert overlap((0.3, 0.5), (0.1, 0.9))
    assert not overlap((0.1, 0.29), (0.3, 0.5))
