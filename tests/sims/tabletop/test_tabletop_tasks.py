"""The shipped tasks: what they are, that they check without warnings, and that the expert does them at their pace."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from structrl.lang.check import check
from structrl.lang.parser import parse
from structrl.plan import compile_plan
from structrl.resources import folder
from structrl.rewards import score_episode
from structrl.sims.base import Start
from structrl.sims.chunks import ChunkRunner
from structrl.sims.tabletop import TabletopExpert, TabletopSimulator
from structrl.task import load_task

NAMES = sorted(Path(each.name).stem for each in (folder("tasks") / "tabletop").iterdir())
SUBTASKS = {
    3: {"pack_lunch", "store_bread", "stack_tower", "ring_for_two"},
    5: {"bake_bread", "start_cooking"},
    8: {"tidy_kitchen", "cook_dinner"},
}


def test_there_are_tasks_of_three_five_and_eight_subtasks():
    assert set.union(*SUBTASKS.values()) == set(NAMES)
    for count, names in SUBTASKS.items():
        assert {len(load_task(f"tabletop/{name}").subtasks) for name in names} == {count}


@pytest.mark.parametrize("name", NAMES)
def test_no_errors_and_no_warnings(name):
    text = (folder("tasks") / "tabletop" / f"{name}.task").read_text()
    assert not check(parse(text, name), f"{name}.task").diagnostics


def test_one_order_cannot_be_said_by_nesting():
    """It contains an N: a before c, b before c and d, and nothing else of the four is ordered."""
    before = compile_plan(load_task("tabletop/start_cooking")).prerequisites.numpy().T
    found = [
        (a, b, c, d)
        for a, b, c, d in itertools.permutations(range(len(before)), 4)
        if before[a, c] and before[b, c] and before[b, d]
        if not (before[[a, a, b, c, d, d], [b, d, a, d, a, c]].any() or before[[c, c, d], [a, b, b]].any())
    ]
    assert found


def play(name: str, count: int, seed: int, slop: float = 0.0) -> tuple[ChunkRunner, np.ndarray, np.ndarray]:
    """The expert's episodes: the runner at their end, holds [E, horizon + 1, N], pays' times T [E, N] (NaN: unpaid)."""
    task = load_task(f"tabletop/{name}")
    sim = TabletopSimulator([task], count, threads=1)
    runner, expert, ids = ChunkRunner(sim), TabletopExpert(sim, slop), np.arange(count)
    begin = [Start(0, -1, (seed, i)) for i in ids]
    runner.reset(ids, begin)
    expert.reset(ids, begin)
    holds, success = [runner.holds.copy()], []
    while not runner.done.all():
        live = np.flatnonzero(~runner.done)
        action = np.zeros((count, 1, 5), np.float32)
        action[live, 0] = expert.act(live)
        runner.run(action)
        holds.append(runner.holds.copy())
        success.append(runner.success.copy())
    seen, won = np.stack(holds, 1), np.stack(success, 1)
    pace = np.full((count, len(task.subtasks)), np.nan)
    for i in np.flatnonzero(runner.success):
        end = runner.t[i]
        score = score_episode(task, seen[i, 1 : end + 1], won[i, :end], holds_at_reset=seen[i, 0])
        paid = score.credited_at.numpy() > 0
        pace[i, paid] = score.interval.numpy()[paid]
    return runner, seen, pace


@pytest.mark.parametrize("name", [name for name in NAMES if name != "pack_lunch"])
def test_expert_earns_every_subtask(name):
    runner, _, pace = play(name, 3, 300)
    assert runner.success.sum() >= 2
    assert np.isfinite(pace[runner.success]).all(), "something was already true, or completed out of turn"


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_expert_succeeds_200_times_within_the_horizon_and_at_the_pace_of_the_file(name):
    task = load_task(f"tabletop/{name}")
    runner, _, pace = play(name, 200, 400)
    assert runner.success.sum() >= 190 and not runner.unstable.any()
    longest = runner.t[runner.success].max()
    assert 1.4 < task.horizon / longest < 2.0
    assert np.allclose(np.nanmean(pace, 0), [s.duration for s in task.subtasks], rtol=0.25)
