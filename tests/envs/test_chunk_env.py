"""The chunk environment as TorchRL sees it: specs, keys, partial resets, starts, states."""

import numpy as np
import pytest
import torch
from torchrl.envs import Compose, TransformedEnv
from torchrl.envs.utils import check_env_specs, step_mdp

from structrl import keys
from structrl.envs import ChunkEnv, row_start, start_row
from structrl.seeding import Stream
from structrl.sims.base import Start
from tests.toy import ToySimulator, toy_task

TASKS = [toy_task(2, name="two", horizon=10), toy_task(3, name="three", horizon=14)]
FLAGS = (keys.SUCCESS, keys.FAILED, keys.DROPPED, keys.TERMINATED, keys.TRUNCATED, keys.DONE)


def make(E=4, H=4, tasks=TASKS, **arguments):
    return ChunkEnv(ToySimulator(tasks, E, **arguments), H)


def rows(*episodes, task=0):
    return torch.tensor([[task, -1, 7, Stream.START, 3, e] for e in episodes])


def reset_to(env, td, ids, start):
    """Reset `ids` to `start` [len(ids), 6], as a rollout does."""
    mask = torch.zeros(env.batch_size[0], 1, dtype=torch.bool)
    mask[ids] = True
    given = td[keys.START].clone()
    given[ids] = start
    return env.reset(td.clone().set("_reset", mask).set(keys.START, given))


@pytest.mark.parametrize("unstable", [None, 3])
def test_passes_the_checks_of_torchrl(unstable):
    env = make(unstable_at=lambda start: unstable)
    check_env_specs(env, break_when_any_done="both")
    check_env_specs(TransformedEnv(env, Compose()), break_when_any_done="both")


def test_keys_shapes_and_no_reward():
    env = make()
    td = env.rand_step(env.reset())
    shapes = {key: tuple(td["next"][key].shape) for key in td["next"].keys(True, True)}
    assert shapes == {
        keys.STATE: (4, 2), keys.TOKENS: (4, 2, 3), keys.TASK: (4, 1), keys.TIME: (4, 1), keys.STEPS: (4, 1),
        keys.START: (4, 6), keys.HOLDS: (4, 5, 3), **dict.fromkeys(FLAGS, (4, 1)),
    }  # fmt: skip
    assert env.reward_keys == [] and env.full_action_spec[keys.ACTION].shape == (4, 4, 2)
    assert env.full_action_spec[keys.ACTION].space.high.unique() == 1


def test_the_step_reports_what_the_runner_did():
    trace = [[0, 0], [1, 0], [1, 1]]
    env = make(E=1, tasks=TASKS[:1], trace=lambda s: np.array(trace, bool))
    td = env.reset()
    assert td[keys.HOLDS].shape == (1, 5, 2) and not td[keys.HOLDS].any() and td[keys.STEPS].item() == 0
    td = env.rand_step(td)["next"]
    assert (td[keys.STEPS].item(), td[keys.TIME].item()) == (2, 2)
    assert td[keys.HOLDS][0].tolist() == [[False, False], [True, False], *[[True, True]] * 3]
    assert [td[flag].item() for flag in FLAGS] == [True, False, False, True, False, True]
    assert env.last_chunk.success.tolist() == [True]


def test_one_observation_per_chunk_and_only_where_something_happened():
    env = make(E=3, H=4, tasks=TASKS[:1], trace=lambda s: np.array([[0, 0]] * (2 + 4 * s.seed[3]) + [[1, 1]], bool))
    seen = env.simulator.observed
    td = env.reset()
    for _ in range(4):
        td = step_mdp(env.rand_step(td))
    assert [ids.tolist() for ids in seen] == [[0, 1, 2], [0, 1, 2], [1, 2], [2]]  # then all are done
    td = reset_to(env, td, [1], rows(0))
    assert seen[-1].tolist() == [1]


def test_outputs_outlive_the_next_step_and_the_next_reset():
    env = make()
    kept, copies = [], []
    td = env.reset()
    for step in range(6):
        kept.append(td)
        copies.append(td.clone())
        td = step_mdp(env.rand_step(td.clone()))
        if step == 3:
            td = reset_to(env, td, [0, 2], rows(8, 9))
    for a, b in zip(kept, copies, strict=True):
        assert (a == b).all()


def test_a_partial_reset_equals_separate_environments():
    """Environment 1 is reset twice while 0 and 2 go on: each trace is that of an environment of its own."""
    H, starts = 3, {0: rows(0, task=1), 1: rows(1), 2: rows(2, task=1), "again": rows(5, task=1)}
    actions = torch.rand(9, 3, H, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    env = make(E=3, H=H)
    td = reset_to(env, env.reset(), [0, 1, 2], torch.cat([starts[0], starts[1], starts[2]]))
    together = [td.clone()]
    for step, action in enumerate(actions):
        td = step_mdp(env.step(td.set(keys.ACTION, action)))
        if step in (1, 5):
            td = reset_to(env, td, [1], starts["again"])
        together.append(td.exclude(keys.ACTION).clone())
    for e in range(3):
        alone = make(E=1, H=H)
        td = reset_to(alone, alone.reset(), [0], starts[e])
        for step, action in enumerate(actions):
            assert (td.exclude(keys.ACTION) == together[step][e : e + 1]).all(), (e, step)
            td = step_mdp(alone.step(td.set(keys.ACTION, action[e : e + 1])))
            if e == 1 and step in (1, 5):
                td = reset_to(alone, td, [0], starts["again"])


def test_reset_goes_to_the_given_starts_also_through_a_transform():
    base = make(E=3)
    env = TransformedEnv(base, Compose())
    start = torch.cat([rows(4, task=1), rows(5), rows(6, task=1)])
    td = env.reset(env.reset().set(keys.START, start))
    assert torch.equal(td[keys.START], start) and td[keys.TASK].flatten().tolist() == [1, 0, 1]
    assert base.simulator.starts == [row_start(row) for row in start.tolist()]
    td = reset_to(env, td, [2], rows(9))
    assert base.simulator.starts[2] == Start(0, -1, (7, Stream.START, 3, 9))
    assert torch.equal(td[keys.START], torch.cat([start[:2], rows(9)]))
    assert td[keys.TASK].flatten().tolist() == [1, 0, 0]


def test_a_first_reset_may_be_partial():
    env = make(E=2)
    td = env.fake_tensordict().exclude("next", keys.ACTION)
    for key in env.done_keys:
        td[key] = torch.ones_like(td[key])
    td = reset_to(env, td, [1], rows(0))
    assert td[keys.DONE].flatten().tolist() == [True, False]
    assert env.rand_step(td)["next", keys.STEPS].flatten().tolist() == [0, 4]


def test_without_starts_it_numbers_its_own_episodes_from_its_seed():
    env = make(E=3)
    env.set_seed(11)
    first = env.reset()
    assert first[keys.START].tolist() == [[e % 2, -1, 11, Stream.START, 0, e] for e in range(3)]
    assert env.reset()[keys.START][:, 5].tolist() == [3, 4, 5]
    env.set_seed(11)
    assert (env.reset() == first).all()
    env.set_seed(12)
    assert not torch.equal(env.reset()[keys.STATE], first[keys.STATE])
    rollout = env.rollout(30, break_when_any_done=False)  # resets by itself, never to a start of before
    episodes = rollout["next", keys.START][..., 5][rollout["next", keys.DONE].squeeze(-1)]
    assert len(episodes) > 6 and len(episodes.unique()) == len(episodes)


def test_state_moves_between_environments_and_continues_bit_for_bit():
    env, other = make(E=3), make(E=3)
    td = env.rand_step(env.reset())
    td = step_mdp(td)
    order = np.array([2, 0, 1])
    other.set_state(np.arange(3), env.state(order))
    for seed in range(4):
        action = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
        a = env.step(td.set(keys.ACTION, action))["next"]
        b = other.step(td.clone().set(keys.ACTION, action[order]))["next"]
        assert (a[torch.from_numpy(order)] == b).all()


def test_start_rows_are_one_to_one():
    start = Start(2, -1, (7, Stream.EVALUATE, 3, 41))
    assert start_row(start) == (2, -1, 7, 5, 3, 41)
    assert row_start(start_row(start)) == start
    with pytest.raises(ValueError, match="seed, stream, iteration, episode"):
        start_row(Start(0, -1, (1, 2)))


def test_close_reaches_the_simulator_once_also_through_a_transform():
    closed = []

    class Closing(ToySimulator):
        def close(self):
            closed.append(1)

    env = TransformedEnv(ChunkEnv(Closing(TASKS, 1), 2), Compose())
    env.close()
    env.base_env.close()
    assert closed == [1] and env.is_closed


def test_a_chunk_has_at_least_one_step():
    with pytest.raises(ValueError, match="at least 1"):
        make(H=0)
