"""The scripted expert packs the lunch; its hidden slop is a pure function of the start."""

import numpy as np
import pytest
from tabletop_helpers import PACKED, play, starts

from structrl.sims.tabletop import TabletopExpert, TabletopSimulator
from structrl.task import load_task


def test_expert_packs_random_lunches():
    done = play(TabletopSimulator([PACKED], 24, threads=1), starts(24, seed=100), 160)["done"]
    assert (done > 0).sum() >= 23
    assert 85 < done[done > 0].mean() < 125


@pytest.mark.heavy
def test_expert_packs_200_random_lunches_and_the_task_files_durations_are_its_pace():
    shipped = load_task("tabletop/pack_lunch")
    result = play(TabletopSimulator([PACKED], 200, threads=1), starts(200, seed=200), shipped.horizon)
    done, first = result["done"], result["first"]
    ok = done > 0
    assert ok.sum() >= 190
    assert done.max() * 1.5 < shipped.horizon
    pace = np.diff(np.c_[np.zeros(ok.sum()), first[ok, :3]], axis=1).mean(0)
    assert np.allclose(pace, [s.duration for s in shipped.subtasks], rtol=0.25), pace


@pytest.mark.heavy
def test_sloppy_expert_mixes_good_and_bad_attempts():
    sim = TabletopSimulator([PACKED], 100, threads=1)
    clean, sloppy = (play(sim, starts(100, seed=7), 200, slop)["done"] for slop in (0.0, 0.014))
    assert (clean > 0).sum() >= 95 and 50 <= (sloppy > 0).sum() <= 90
    both = (clean > 0) & (sloppy > 0)
    assert sloppy[both].mean() > clean[both].mean() + 2


def test_actions_are_within_bounds_and_follow_the_start_not_the_environment():
    sim = TabletopSimulator([PACKED], 5, threads=1)
    begin = starts(2, seed=3)
    actions = []
    for ids in (np.array([0, 1]), np.array([2, 4])):
        expert = TabletopExpert(sim, 0.01)
        sim.reset(ids, begin)
        expert.reset(ids, begin)
        taken = []
        for _ in range(40):
            taken.append(expert.act(ids))
            sim.step(ids, taken[-1])
        actions.append(np.stack(taken))
    assert np.array_equal(*actions)
    assert actions[0].dtype == np.float32 and np.abs(actions[0]).max() <= 1
    assert not np.array_equal(actions[0][:, 0], actions[0][:, 1])


def test_slop_shifts_the_grasp_by_its_size():
    sim = TabletopSimulator([PACKED], 64, threads=1)
    ids, begin = np.arange(64), starts(64)
    offsets = []
    for slop in (0.0, 0.007, 0.014):
        expert = TabletopExpert(sim, slop)
        expert.reset(ids, begin)
        offsets.append(expert._offset)
    assert not offsets[0].any()
    assert np.allclose(offsets[2], 2 * offsets[1])
    assert offsets[1].std() == pytest.approx(0.007, rel=0.05)
    assert len(np.unique(offsets[1])) == offsets[1].size


def test_negative_slop_is_refused():
    with pytest.raises(ValueError, match="slop"):
        TabletopExpert(TabletopSimulator([PACKED], 1), -0.01)
