"""A small share of `python -m benchmarks.random_actions`: nothing raises, nothing is infinite."""

import numpy as np

from benchmarks import random_actions


def test_a_hundred_episodes_of_random_actions(capsys):
    assert random_actions.main(["--episodes", "112", "--horizon", "64", "--num-envs", "7", "--threads", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + 8 * 2 + 2
    total = rows[-2].split()
    assert total[:3] == ["all", "112", str(112 * 64)] and total[-1] == "none", rows[-2]


def test_sticky_actions_are_held_and_all_are_functions_of_the_episode():
    for kind in random_actions.KINDS:
        both = random_actions.actions(kind, [3, 8], 50, seed=1)
        assert np.array_equal(both[1:], random_actions.actions(kind, [8], 50, seed=1))
        assert not np.array_equal(*both)
        held = (both[:, 1:] == both[:, :-1]).all(-1).mean()
        assert held == 0 if kind == "uniform" else held > 0.8
