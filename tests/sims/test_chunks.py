"""Chunks: where they stop, what they report, and that the chunk length changes nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structrl.sims.base import Start
from structrl.sims.chunks import ChunkRunner
from tests.toy import ToySimulator, toy_task


def starts(n, task=0):
    return [Start(task, -1, (0, 1, 0, episode)) for episode in range(n)]


def scripted(rows, E=2, record=False, H=None, **task):
    """A runner of E environments whose atoms follow `rows` (a function of the start, or one trace for all)."""
    trace = rows if callable(rows) else lambda start: np.array(rows, bool)
    sim = ToySimulator([toy_task(**task)], E, trace=trace)
    runner = ChunkRunner(sim, record)
    runner.reset(np.arange(E), starts(E))
    return sim, runner


def zeros(runner, H):
    return np.zeros((runner.sim.num_envs, H, 2), np.float32)


def test_success_inside_a_chunk_stops_that_environment_only():
    done_at = {0: 3, 1: 100}
    sim, runner = scripted(lambda s: np.array([[t >= done_at[s.seed[3]]] for t in range(101)]), subtasks=1)
    result = runner.run(zeros(runner, 8))
    assert result.steps.tolist() == [3, 8]
    assert result.t.tolist() == [3, 8]
    assert result.success.tolist() == result.terminated.tolist() == [True, False]
    assert not result.truncated.any() and not result.failed.any()
    assert result.holds[0, :, 0].tolist() == [False] * 3 + [True] * 6
    assert sum(0 in ids for ids in sim.steps) == 3 and sum(1 in ids for ids in sim.steps) == 8


def test_a_done_environment_stands_still_until_its_reset():
    sim, runner = scripted([[0, 0], [1, 0], [1, 1]], E=1)
    runner.run(zeros(runner, 4))
    before = len(sim.steps)
    again = runner.run(np.full((1, 4, 2), np.nan, np.float32))  # not read: NaN of a done environment is no error
    assert len(sim.steps) == before
    assert again.steps.tolist() == [0] and again.t.tolist() == [2] and again.success.all() and again.terminated.all()
    assert again.holds[0].all()  # all rows repeat the last executed one
    runner.reset(np.array([0]), starts(1))
    assert runner.run(zeros(runner, 4)).steps.tolist() == [2]


def test_nothing_runs_before_the_first_reset():
    runner = ChunkRunner(ToySimulator([toy_task()], 2))
    assert runner.run(zeros(runner, 3)).steps.tolist() == [0, 0]


def test_holds_before_the_chunk_is_the_last_row_of_the_one_before():
    _, runner = scripted([[0, 0], [1, 0], [0, 0], [1, 0], [0, 0]], E=1)
    first, second = runner.run(zeros(runner, 3)), runner.run(zeros(runner, 3))
    assert first.holds[0, :, 0].tolist() == [False, True, False, True]
    assert second.holds[0, :, 0].tolist() == [True, False, False, False]


@pytest.mark.parametrize("H", [1, 3, 4, 7, 16])
def test_horizon_not_a_multiple_of_the_chunk(H):
    _, runner = scripted([[0, 0]], E=1, horizon=10)
    steps = []
    while not runner.done.all():
        result = runner.run(zeros(runner, H))
        steps.append(int(result.steps[0]))
    assert sum(steps) == 10 and steps[:-1] == [H] * (len(steps) - 1)
    assert result.truncated.all() and not result.terminated.any()


def test_success_at_the_horizon_is_terminated():
    _, runner = scripted([[t >= 10] for t in range(11)], E=1, horizon=10, subtasks=1)
    result = runner.run(zeros(runner, 16))
    assert result.steps.tolist() == [10]
    assert result.success.all() and result.terminated.all() and not result.truncated.any()


def test_fail_ends_counts_and_beats_success_and_horizon():
    _, runner = scripted([[t >= 5] for t in range(6)], E=1, horizon=5, subtasks=1, fail=(("atom", 0),))
    result = runner.run(zeros(runner, 8))
    assert result.failed.all() and result.terminated.all()
    assert not (result.success.any() or result.truncated.any() or result.unstable.any())
    assert runner.counts == {"invalid_starts": 0, "unstable": 0, "failed": 1, "clipped_steps": 0}
    runner.run(zeros(runner, 8))
    assert runner.counts["failed"] == 1


def test_unstable_physics_is_a_failed_episode_whose_last_state_counts_for_nothing():
    trace = np.array([[0, 0], [1, 0], [1, 0], [0, 1], [1, 1]], bool)
    sim = ToySimulator([toy_task()], 2, trace=lambda s: trace, unstable_at=lambda s: 3 if s.seed[3] == 0 else None)
    runner = ChunkRunner(sim, record=True)
    runner.reset(np.arange(2), starts(2))
    result = runner.run(zeros(runner, 8))
    assert result.steps.tolist() == [3, 4]
    assert result.unstable.tolist() == result.failed.tolist() == [True, False]
    assert result.terminated.all() and result.success.tolist() == [False, True]
    assert result.holds[0, 3].tolist() == [True, False]  # the row before, not what was measured in the broken state
    assert result.atoms[0, 3].tolist() == [True, False]
    assert runner.counts["unstable"] == runner.counts["failed"] == 1


def test_a_start_that_is_already_over_is_redrawn_with_its_attempt_number():
    bad = {(0, 1, 0, 0), (0, 1, 0, 0, 1), (0, 1, 0, 2)}
    sim, runner = scripted(lambda s: np.array([[s.seed in bad]]), E=3, subtasks=1)
    assert sim.starts == [
        Start(0, -1, (0, 1, 0, 0, 2)),
        Start(0, -1, (0, 1, 0, 1)),
        Start(0, -1, (0, 1, 0, 2, 1)),
    ]
    assert runner.counts["invalid_starts"] == 3
    assert not runner.done.any() and not runner.holds.any()


@pytest.mark.parametrize("why", ["success", "fail", "unstable physics"])
def test_a_task_without_valid_starts_is_an_error_that_names_the_file(why):
    task = toy_task(1, path="tasks/mine.task", fail=(("atom", 0),) if why == "fail" else None)
    sim = ToySimulator(
        [task],
        1,
        trace=lambda s: np.array([[why != "unstable physics"]]),
        unstable_at=(lambda s: 0) if why == "unstable physics" else None,
    )
    runner = ChunkRunner(sim)
    with pytest.raises(ValueError, match=rf"tasks/mine.task.*{why}.*100 redraws"):
        runner.reset(np.array([0]), starts(1))
    assert runner.counts["invalid_starts"] == 100


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_actions_name_environment_and_task(value):
    _, runner = scripted([[0, 0]], E=3)
    action = zeros(runner, 4)
    action[1, 2, 0] = value
    with pytest.raises(ValueError, match=r"environment 1 \(task 'toy', tasks/toy.task\)"):
        runner.run(action)


def test_actions_out_of_bounds_are_clipped_and_counted_where_executed():
    sim, runner = scripted([[t >= 3, t >= 3] for t in range(4)], E=1)
    action = np.full((1, 8, 2), 2.0, np.float32)
    action[0, 1] = 1.0  # on the bound
    at = sim.position[0].copy()
    runner.run(action)
    assert runner.counts["clipped_steps"] == 2  # steps 1 and 3; step 2 was within, the rest not executed
    np.testing.assert_allclose(sim.position[0], np.clip(at + 0.3, -1, 1))
    assert action.max() == 2.0  # the caller's array is left alone


def test_wrong_shapes_are_errors():
    _, runner = scripted([[0, 0]], E=2)
    for shape in [(2, 4), (3, 4, 2), (2, 4, 3)]:
        with pytest.raises(ValueError, match="expected"):
            runner.run(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="2 environments, 1 starts"):
        runner.reset(np.arange(2), starts(1))
    with pytest.raises(ValueError, match="task row 1"):
        runner.reset(np.arange(1), starts(1, task=1))


def test_mixed_tasks_with_different_subtasks_and_atoms():
    tasks = [toy_task(1, name="one", horizon=4), toy_task(3, name="three", atoms=4, horizon=6)]
    traces = [np.array([[0], [0], [1]], bool), np.array([[0] * 4, [1, 0, 1, 0], [1, 1, 1, 0]], bool)]
    sim = ToySimulator(tasks, 4, trace=lambda s: traces[s.task])
    runner = ChunkRunner(sim, record=True)
    runner.reset(np.arange(4), [Start(e % 2, -1, (0, 1, 0, e)) for e in range(4)])
    result = runner.run(zeros(runner, 8))
    assert result.holds.shape == (4, 9, 3) and result.atoms.shape == result.values.shape == (4, 9, 4)
    assert result.steps.tolist() == [2, 6, 2, 6]
    assert result.success.tolist() == [True, False] * 2 and result.truncated.tolist() == [False, True] * 2
    assert result.holds[0, 2].tolist() == [True, False, False]  # padding never holds
    assert result.holds[3, 1:3].tolist() == [[True, False, True], [True, True, True]]
    assert np.isnan(result.values[0, :, 1:]).all() and not np.isnan(result.values[1]).any()


def test_record_keeps_atoms_and_values_of_every_step():
    sim = ToySimulator([toy_task()], 1)
    runner = ChunkRunner(sim, record=True)
    runner.reset(np.array([0]), starts(1))
    x0 = sim.position[0].copy()
    action = np.ones((1, 3, 2), np.float32)
    result = runner.run(action)
    expected = np.clip(x0 + 0.1 * np.arange(4)[:, None], -1, 1)
    np.testing.assert_allclose(result.values[0], expected)
    assert (result.atoms[0] == (expected > 0.6)).all() and (result.holds == result.atoms).all()
    assert ChunkRunner(sim).run(action).atoms is None


class OwnSuccess(ToySimulator):
    def own_success(self, ids):
        return self.time[ids] >= 2


def test_the_simulators_own_success_serves_tasks_without_one():
    tasks = [toy_task(1, success=None), toy_task(1, success=(("atom", 0),))]
    runner = ChunkRunner(OwnSuccess(tasks, 2, trace=lambda s: np.zeros((1, 1), bool)))
    runner.reset(np.arange(2), [Start(0, -1, (0,)), Start(1, -1, (0,))])
    result = runner.run(zeros(runner, 4))
    assert result.success.tolist() == [True, False] and result.steps.tolist() == [2, 4]


def test_tasks_that_cannot_run_are_errors_that_name_the_file():
    with pytest.raises(ValueError, match=r"tasks/toy.task.*`horizon`"):
        ChunkRunner(ToySimulator([toy_task(horizon=None)], 1))
    with pytest.raises(ValueError, match=r"tasks/toy.task.*`success`"):
        ChunkRunner(ToySimulator([toy_task(success=None)], 1))


# -- the chunk length changes nothing ---------------------------------------------------------------------------------

TASKS = [
    toy_task(2, name="reach", horizon=17, success=(("atom", 0), ("atom", 1), ("and", 2), ("for", 2))),
    toy_task(1, name="stay", horizon=9, programs=[(("atom", 0), ("for", 3))], fail=(("atom", 0), ("steps_of", 6))),
]


def drive(runner, plan, H):
    """Run the per-step actions `plan` [E, T, A] in chunks of H; per environment: rows of holds, and the end."""
    E, T, _ = plan.shape
    rows = [[runner.holds[e].tolist()] for e in range(E)]
    result = None
    for begin in range(0, T, H):
        chunk = np.zeros((E, H, 2), np.float32)
        chunk[:, : len(plan[0, begin : begin + H])] = plan[:, begin : begin + H]
        result = runner.run(chunk)
        for e in range(E):
            rows[e] += result.holds[e, 1 : 1 + result.steps[e]].tolist()
            assert (result.holds[e, result.steps[e] :] == result.holds[e, result.steps[e]]).all()
    flags = [(bool(result.success[e]), bool(result.failed[e]), bool(result.truncated[e])) for e in range(E)]
    return rows, flags, result.t.tolist()


def by_hand(start, plan, unstable_at):
    """One environment, one step at a time, conditions written out."""
    sim = ToySimulator(TASKS, 1)
    one = np.array([0])
    sim.reset(one, [start])
    history, rows, end = [], [], None
    for t in range(len(plan) + 1):
        if t:
            sim.step(one, plan[None, t - 1])
        if unstable_at is not None and t >= unstable_at:
            rows.append(rows[-1])
            return rows, (False, True, False), t
        history.append(sim.atom_values(one)[0] > 0.6)
        if start.task == 0:
            rows.append([bool(history[-1][0]), bool(history[-1][1])])
            success, fail = len(history) >= 2 and history[-1].all() and history[-2].all(), False
        else:
            stayed = len(history) >= 3 and all(h[0] for h in history[-3:])
            rows.append([stayed, False])
            success, fail = bool(history[-1][0]), sum(h[0] for h in history) >= 6
        horizon = TASKS[start.task].horizon
        end = (bool(success and not fail), bool(fail), t >= horizon and not success and not fail)
        if any(end):
            return rows, end, t
    raise AssertionError("the plan is longer than any horizon")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**16), H=st.integers(1, 20), unstable=st.none() | st.integers(1, 12))
def test_the_trace_does_not_depend_on_the_chunk_length(seed, H, unstable):
    rng = np.random.default_rng(seed)
    E, T = 3, 20
    begin = [Start(int(rng.integers(2)), -1, (seed, 1, 0, e)) for e in range(E)]
    plan = np.clip(rng.normal(0.5, 0.7, (E, T, 2)), -1, 1).astype(np.float32)
    limits = {(seed, 1, 0, 1): unstable}
    sim = ToySimulator(TASKS, E, unstable_at=lambda s: limits.get(s.seed))
    runner = ChunkRunner(sim)
    runner.reset(np.arange(E), begin)
    rows, flags, t = drive(runner, plan, H)
    for e in range(E):
        expected = by_hand(begin[e], plan[e], limits.get(begin[e].seed))
        assert (rows[e], flags[e], t[e]) == expected


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), cut=st.integers(1, 8), H=st.integers(1, 6))
def test_a_moved_state_continues_bit_for_bit(seed, cut, H):
    rng = np.random.default_rng(seed)
    E = 3
    begin = [Start(int(rng.integers(2)), -1, (seed, 1, 0, e)) for e in range(E)]
    plan = rng.uniform(-1, 1, (E, 24, 2)).astype(np.float32)
    runner = ChunkRunner(ToySimulator(TASKS, E), record=True)
    runner.reset(np.arange(E), begin)
    drive(runner, plan[:, :cut], 1)
    order = rng.permutation(E)
    other = ChunkRunner(ToySimulator(TASKS, E), record=True)
    other.set_state(np.arange(E), runner.state(order))
    rows, flags, t = drive(runner, plan[:, cut:], H)
    moved = drive(other, plan[order, cut:], H)
    assert moved == ([rows[i] for i in order], [flags[i] for i in order], [t[i] for i in order])
    assert (other.sim.position == runner.sim.position[order]).all()
    assert (other.atoms == runner.atoms[order]).all() and np.array_equal(other.values, runner.values[order], True)
