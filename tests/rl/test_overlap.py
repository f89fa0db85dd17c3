"""Two halves that take turns: the same episodes as one batch, and really at the same time.

Bit for bit where the policy is asked row by row: kernels may round otherwise with another number of rows.
"""

import os
import signal
import threading

import numpy as np
import pytest
import torch
from torchrl.envs import TransformedEnv

from structrl import keys
from structrl.envs import ChunkEnv, EnvConfig, Halves, config, make_env, make_halves
from structrl.plan import stack_plans
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import env_spec
from structrl.rewards import RewardOptions, StructuredReward
from structrl.rl.actors import deterministic, sampling
from structrl.rl.groups import GroupStartError, GroupStarts
from structrl.rl.rollout import ENV, run_episodes
from structrl.seeding import Stream
from structrl.sims import registry
from structrl.sims.base import Start
from structrl.sims.pool import Pool
from tests.rl.test_module import train
from tests.rl.toy_data import TASKS, ToyData, small_policy, toy_env, toy_halves
from tests.sims.faulty import FaultySimulator
from tests.sims.test_pool import TASKS as FAULTY_TASKS
from tests.sims.test_pool import H, assert_same, assert_the_rest_is_undisturbed, start
from tests.sims.test_pool import episodes as pool_episodes
from tests.toy import toy_task

torch.set_num_threads(1)


def starts(count, tasks=2, group=1):
    return [Start(e // group % tasks, -1, (5, Stream.START, 3, e // group)) for e in range(count)]


def row_by_row(act):
    def each(td, chunk, episode):
        return torch.cat([act(td[i : i + 1], chunk[i : i + 1], episode[i : i + 1]) for i in range(len(td))])

    return each


def rollout(env, count=12, policy=small_policy, act=sampling):
    spec = env_spec(env)
    torch.manual_seed(0)
    actor_critic = ActorCritic(policy(spec), FlowOptions())
    tasks = len(env.simulator.tasks)
    with torch.no_grad():
        return run_episodes(env, row_by_row(act(actor_critic, starts(count, tasks))), starts(count, tasks))


def assert_equal(one, two):
    for name in ("chunks", "table", "final"):
        assert_same(getattr(one, name), getattr(two, name))
    assert torch.equal(one.kept, two.kept)


@pytest.mark.parametrize("num_envs", [2, 5, 8, 40])
@pytest.mark.parametrize("act", [sampling, deterministic])
def test_toy_episodes_are_those_of_one_batch(num_envs, act):
    halves = toy_halves(num_envs)
    assert halves.batch_size == (num_envs,)
    assert_equal(rollout(halves, act=act), rollout(toy_env(num_envs), act=act))
    halves.close()


@pytest.mark.parametrize(
    ("workers", "sim"),
    [(0, {}), (3, {}), pytest.param(2, {"cameras": ["wrist"], "camera_size": 32}, marks=pytest.mark.heavy)],
)
def test_tabletop_episodes_are_those_of_one_batch(workers, sim):
    """With the policy of the quickstart, in this process and in workers; the whole batch is here."""
    made = []
    for overlap in (False, True):
        cfg = EnvConfig(
            ["tabletop/pack_lunch"], num_envs=7, sim={"threads": 1} | sim, overlap=overlap,
            workers=workers if overlap else 0,
        )  # fmt: skip
        env = make_halves(cfg)
        assert isinstance(env, Halves) == overlap
        made.append(rollout(env, 9, lambda spec: CompactVLA(spec)))
        assert env.counts["unstable"] == 0
        env.close()
    assert_equal(*made)


def test_a_run_is_the_same():
    (_, history), (_, other) = (train(3, data=ToyData(seed=4, overlap=overlap)) for overlap in (False, True))
    for a, b in zip(history.weights, other.weights, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-4)
    for a, b in zip(history.metrics, other.metrics, strict=True):
        assert a.keys() == b.keys()
        assert [a[k] for k in a if k.startswith("task/")] == pytest.approx(
            [b[k] for k in a if k.startswith("task/")], nan_ok=True
        )


def test_one_half_simulates_while_the_policy_acts_in_the_other():
    """A step of either half does not end before the policy was asked about the other one, but for the last ones."""
    halves, acting, met = toy_halves(4, TASKS), [threading.Event(), threading.Event()], []
    for half, part in enumerate(halves.parts):
        runner = part.base_env.runner
        run = runner.run

        def waits(action, half=half, run=run, runner=runner):
            if len(met) < 4:
                met.append(acting[1 - half].wait(10))
                acting[1 - half].clear()
            return run(action)

        runner.run = waits

    def act(td, chunk, episode):
        acting[int(td[ENV][0]) >= 2].set()
        return td.set(keys.ACTION, torch.zeros(len(td), 4, 3))

    run_episodes(halves, act, starts(4))
    halves.close()
    assert met == [True] * 4


def test_environments_are_numbered_on_and_their_states_are_found():
    halves, seen = toy_halves(5), []

    def act(td, chunk, episode):
        seen.append(set(td[ENV].tolist()))
        if len(seen) == 2:
            ids = np.array([4, 0, 3])
            state = halves.state(ids)
            assert state["start"][:, 5].tolist() == [4, 0, 3]
            assert not halves.lost.any()
        return td.set(keys.ACTION, torch.zeros(len(td), 4, 3))

    run_episodes(halves, act, starts(5))
    halves.close()
    assert seen[:2] == [{0, 1, 2}, {3, 4}]


def test_groups_share_a_start_across_the_halves():
    """Members of a group in both halves; and one whose state differs is found out."""
    halves = toy_halves(6)

    def still(td, chunk, episode):
        return td.set(keys.ACTION, torch.zeros(len(td), 4, 3))

    grouped = starts(16, group=8)
    proof = GroupStarts(still, halves, grouped)
    run_episodes(halves, proof, grouped)
    assert proof.members == 16 and len(proof.seen) == 2

    simulator = halves.parts[1].base_env.simulator
    reset = simulator.reset

    def elsewhere(ids, drawn):
        reset(ids, drawn)
        simulator.position[ids] += 0.01

    simulator.reset = elsewhere
    with pytest.raises(GroupStartError, match="differ"):
        run_episodes(halves, GroupStarts(still, halves, grouped), grouped)
    halves.close()


def faulty_halves(faults):
    def half():
        made = Pool("faulty", "tests.sims.faulty:FaultySimulator", FAULTY_TASKS, 2, H, {"faults": faults}, workers=2)
        reward = StructuredReward(stack_plans(FAULTY_TASKS), RewardOptions(), H)
        return TransformedEnv(ChunkEnv(made, H), reward)

    return Halves([half(), half()])


def test_a_dead_worker_costs_its_own_episodes():
    undisturbed = pool_episodes(FaultySimulator(FAULTY_TASKS, 4))
    halves = faulty_halves({"5": ["step", "kill"]})
    out = pool_episodes(halves)
    lost = sorted({*range(12)} - {*out.kept.tolist()})
    assert lost == [5]
    assert_the_rest_is_undisturbed(out, undisturbed, lost)
    assert halves.counts["restarts"] == halves.counts["dropped"] == 1
    halves.close()


@pytest.mark.parametrize("phase", ["reset", "state"])
def test_a_group_loses_the_member_whose_worker_dies(phase):
    """GRPO's proof asks for the state of episodes; one that is lost has none, and is dropped."""
    halves = faulty_halves({"1": ["reset", "kill"]} if phase == "reset" else {})
    grouped = [start(e // 4) for e in range(8)]

    def act(td, chunk, episode):
        return td.set(keys.ACTION, torch.zeros(len(td), H, 2))

    if phase == "state":  # a worker dies between the reset and the question
        pool = halves.parts[0].base_env.runner
        state = pool.state

        def dies(ids):
            os.kill(pool._processes[0].process.pid, signal.SIGKILL)
            pool.state = state
            return state(ids)

        pool.state = dies
    proof = GroupStarts(act, halves, grouped)
    out = run_episodes(halves, proof, grouped)
    if phase == "reset":
        assert out.kept.tolist() == [0, 1, 2, 3] and proof.members == 4
    else:
        assert out.dropped == 1 and proof.members == 7
    halves.close()


def test_an_error_in_a_half_is_the_error_of_the_run():
    halves = toy_halves(4)

    def fails(action):
        raise ZeroDivisionError("the gripper is stuck")

    halves.parts[1].base_env.runner.run = fails
    with pytest.raises(ZeroDivisionError, match="stuck"):
        rollout(halves)
    halves.close()


def test_configs_that_cannot_be_halved(monkeypatch):
    with pytest.raises(ValueError, match=r"env\.num_envs must be above 1"):
        EnvConfig(["a"], num_envs=1, overlap=True)
    with pytest.raises(ValueError, match=r"env\.workers cannot be 1"):
        EnvConfig(["a"], num_envs=4, workers=1, overlap=True)
    big = EnvConfig(["a"], num_envs=8, workers=4, overlap=True)
    assert (big.sized(1).overlap, big.sized(1).workers) == (False, 1)
    assert (big.sized(3).overlap, big.sized(3).workers) == (True, 3)

    monkeypatch.setitem(registry.BUILTIN, "toy", "tests.toy:ToySimulator")
    monkeypatch.setattr(config, "load_task", lambda name: toy_task(2))
    wanted = EnvConfig(["toy"], num_envs=5, overlap=True)
    assert not isinstance(make_env(wanted, record=True), Halves)
    assert [part.batch_size[0] for part in make_halves(wanted).parts] == [3, 2]
