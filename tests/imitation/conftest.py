"""The toy simulator as if it were one of structrl's, with task files and a scripted expert."""

import numpy as np
import pytest

from structrl.envs import config
from structrl.evaluate import replay
from structrl.imitation import demos
from structrl.seeding import generator
from structrl.sims import registry
from tests.toy import toy_task

TASK = toy_task(2, name="climb", horizon=20)
OTHER = toy_task(3, name="three", horizon=14, chain=False)


class ToyExpert:
    """Moves up along every axis at half speed; stands still, and so fails, where its start says so."""

    def __init__(self, sim, slop=0.0):
        self.sim = sim
        self.slop = slop  # share of episodes that fail
        self.lazy = np.zeros(sim.num_envs, bool)

    def reset(self, ids, starts):
        self.lazy[ids] = [generator(*start.seed, 0, 1).random() < self.slop for start in starts]

    def act(self, ids):
        return np.where(self.lazy[ids, None], 0.0, [[0.5, 0.9]]).astype(np.float32)


@pytest.fixture
def toy(monkeypatch):
    """Task names -> specs; simulator and expert `toy` are known."""
    files = {TASK.name: TASK, OTHER.name: OTHER}
    monkeypatch.setitem(registry.BUILTIN, "toy", "tests.toy:ToySimulator")
    monkeypatch.setitem(demos.EXPERTS, "toy", "tests.imitation.conftest:ToyExpert")
    monkeypatch.setattr(config, "load_task", files.__getitem__)
    monkeypatch.setattr(demos, "load_task", files.__getitem__)
    monkeypatch.setattr(replay, "load_task", files.__getitem__)
    return files
