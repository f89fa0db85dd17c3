"""GRPO: groups proven to share a start, vector V12 of the flow-RL reference notes, dynamic sampling, learning."""

import numpy as np
import pytest
import torch
from torch import tensor

from structrl import keys
from structrl.envs import EnvConfig, make_env
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import env_spec
from structrl.rl.actors import sampling
from structrl.rl.batch import number_chunks
from structrl.rl.groups import GroupStartError, GroupStarts, chain_rounds, group_statistics
from structrl.rl.grpo import GRPO
from structrl.rl.options import GRPOOptions
from structrl.rl.rollout import run_episodes
from structrl.seeding import Stream
from structrl.sims.base import Start
from tests.rl.test_module import History, fit
from tests.rl.toy_data import ToyData, small_policy, toy_env


def statistics(returns, beta=0.0, success=None, numbers=None, **options):
    returns = tensor(returns, dtype=torch.float32)
    numbers = torch.arange(len(returns)) // 4 if numbers is None else tensor(numbers)
    success = returns > 0.5 if success is None else tensor(success)
    return group_statistics(numbers, returns, success, GRPOOptions(**options), beta)


def test_v12_advantages():
    out = statistics([1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0])
    expected = [0.866024, -0.866024, -0.866024, 0.866024, 0, 0, 0, 0]
    expected += [1.499997, *[-0.499999] * 3, *[0.499999] * 3, -1.499997]
    torch.testing.assert_close(out.advantage, tensor(expected), atol=5e-6, rtol=0)  # the vectors add 1e-6 to std
    assert out.counted()["zero_variance"].tolist() == [False, True, False, False]
    assert out.kept.tolist() == [True, False, True, True]  # means .5, 1, .25, .75 against .1 to .9


def test_std_has_a_floor_of_a_quarter_beta():
    returns = [0.30, 0.31, 0.30, 0.31]
    spread = float(np.std(returns, ddof=1))
    assert spread < 0.25 * 0.6
    torch.testing.assert_close(statistics(returns, beta=0.6).advantage, (tensor(returns) - 0.305) / (0.25 * 0.6))
    torch.testing.assert_close(
        statistics(returns, beta=0.6, std_floor=0.0).advantage, (tensor(returns) - 0.305) / spread, atol=1e-3, rtol=1e-4
    )


def test_lost_members_and_keep_by_spread():
    """Groups of 4 that lost members: statistics over those that are there; one alone has no baseline."""
    out = statistics([2.6, 0.3, 0.5, 0.9, 0.9], numbers=[0, 0, 0, 3, 7], keep_if="return_std", min_return_std=0.1)
    assert out.number.tolist() == [0, 3, 7]
    assert out.usable.tolist() == out.kept.tolist() == [True, False, False]
    assert out.counted()["too_small"].sum() == 2
    assert out.advantage[:3].sum() == pytest.approx(0, abs=1e-6)
    assert out.advantage[3:].tolist() == [0, 0]
    calm = statistics([0.3, 0.3, 0.35, 0.3], success=[False] * 4, keep_if="return_std", min_return_std=0.1)
    assert not calm.kept.any()
    assert statistics([0.3, 0.9, 0.3, 0.3], success=[False] * 4, keep_if="return_std", min_return_std=0.1).kept.all()


def test_advantages_do_not_depend_on_the_order_of_episodes():
    g = torch.Generator().manual_seed(0)
    returns, numbers = torch.rand(24, generator=g), torch.arange(24) // 4
    order = torch.randperm(24, generator=g)
    one, two = (
        group_statistics(numbers[o], returns[o], returns[o] > 0.5, GRPOOptions(), 0.6)
        for o in (torch.arange(24), order)
    )
    torch.testing.assert_close(one.advantage[order], two.advantage)
    assert torch.equal(one.kept, two.kept)


def starts(n, group=4):
    return [Start(e // group % 2, -1, (9, Stream.START, 2, e // group)) for e in range(n)]


def checked_run(num_envs, env=None, n=12):
    env = env or toy_env(num_envs)
    torch.manual_seed(0)
    policy = ActorCritic(small_policy(env_spec(env)), FlowOptions(), critic=False)
    act = GroupStarts(sampling(policy, starts(n), range(n)), env, starts(n))
    return act, run_episodes(env, act, starts(n))


def test_members_share_the_state_and_not_the_noise():
    """By hash, in environments that have run other episodes before; and each member acts by noise of its own."""
    act, out = checked_run(5)
    assert act.members == 12 and len(act.seen) == 3
    assert len({tuple(sorted(digest.items())) for digest in act.seen.values()}) == 3, "other groups, other states"
    first = out.chunks["chunk"] == 0
    state, noise = out.chunks[keys.STATE][first], out.chunks[keys.CHAIN][first][:, 0].flatten(1)
    assert len(state.unique(dim=0)) == 3
    assert len(noise.unique(dim=0)) == 12
    alone = checked_run(1)[1]
    torch.testing.assert_close(alone.chunks[keys.CHAIN], out.chunks[keys.CHAIN], atol=2e-4, rtol=1e-4)


def test_a_reset_that_is_no_function_of_the_start_is_found():
    env = toy_env(3)
    simulator, reset = env.base_env.simulator, env.base_env.simulator.reset

    def drifting(ids, starts):
        reset(ids, starts)
        simulator.position[ids, 0] += 1e-12 * ids  # no observation, reward or tolerance would show it

    simulator.reset = drifting
    with pytest.raises(GroupStartError, match=r"group .*: sim.position differ"):
        checked_run(3, env)


def test_tabletop_groups_share_their_state_bit_for_bit():
    from structrl.envs import EnvConfig, make_env

    env = make_env(EnvConfig(tasks=["tabletop/pack_lunch"], num_envs=6))
    members = [Start(0, -1, (3, Stream.START, 0, e // 4)) for e in range(12)]

    def act(td, chunk, episode):  # members part at once, and environments are reused
        g = torch.Generator().manual_seed(int(chunk.sum()) + 1)
        return td.set(keys.ACTION, 2 * torch.rand(len(td), 8, 5, generator=g) - 1)

    check = GroupStarts(act, env, members)
    run_episodes(env, check, members)
    assert check.members == 12 and len(check.seen) == 3
    env.close()


def test_groups_are_numbered_whole_over_ranks():
    counts = torch.arange(1, 13)  # episodes of 6 groups of 2
    one, total = number_chunks(counts[None], 0)
    names = {int(n): e for n, e in zip(one, torch.repeat_interleave(torch.arange(12), counts), strict=True)}
    groups = torch.arange(12).view(6, 2)
    for rank in range(2):
        mine = groups[rank::2].flatten()
        by_rank = torch.stack([counts[groups[r::2].flatten()] for r in range(2)])
        numbers, everything = number_chunks(by_rank, rank, group=2)
        assert everything == total
        expected = torch.repeat_interleave(mine, counts[mine])
        assert [names[int(n)] for n in numbers] == expected.tolist()


def train(iterations, data=None, flow=None, **options):
    module = GRPO(
        small_policy, flow or FlowOptions(noise=1.5), GRPOOptions(**{"group_size": 4, "learning_rate": 2e-4} | options)
    )
    history = History()
    fit(module, iterations, data or ToyData(seed=1, easy=True), [history])
    return module, history


@pytest.fixture(scope="module")
def two():
    return train(2)


def test_metrics_and_no_critic(two):
    history = two[1]
    metrics = history.metrics[-1]
    assert metrics["grpo/groups"] == 4 and metrics["grpo/too_small"] == 0 and metrics["grpo/rounds"] == 1
    assert metrics["grpo/used"] == 4 and metrics["grpo/return_std"] > 0
    assert metrics["ppo/first_ratio_err"] < 1e-3
    assert not [k for k in metrics if "value" in k or "critic" in k or "explained" in k]
    before, after = history.weights
    assert all(torch.equal(before[k], after[k]) for k in before if "critic" in k)
    assert any(not torch.equal(before[k], after[k]) for k in before if "critic" not in k)


def test_same_seed_same_numbers(two):
    _, again = train(2)
    assert all(torch.equal(a, again.weights[1][k]) for k, a in two[1].weights[1].items())


def test_mask_takes_rejected_groups_out(two):
    _, history = train(2, dynamic_sampling="mask", keep_if="return_std", min_return_std=1e9)
    assert all(m["grpo/used"] == 0 and m["charts/chunks"] == 0 and m["ppo/steps"] == 0 for m in history.metrics)
    assert all(torch.equal(history.weights[0][k], v) for k, v in history.weights[1].items()), "nothing to learn from"
    _, history = train(1, dynamic_sampling="mask", keep_if="return_std", min_return_std=1e-6)
    metrics = history.metrics[0]
    assert 0 < metrics["grpo/kept"] == metrics["grpo/used"] <= 4


def test_refill_runs_further_groups_until_enough_are_kept():
    spread = {"dynamic_sampling": "refill", "keep_if": "return_std"}
    _, history = train(1, **spread, min_return_std=0.2, max_rounds=6)
    metrics = history.metrics[0]
    assert 1 < metrics["grpo/rounds"] <= 6
    assert metrics["grpo/groups"] == 4 * metrics["grpo/rounds"]
    assert metrics["grpo/used"] == min(4, metrics["grpo/kept"])
    _, history = train(1, **spread, min_return_std=1e9, max_rounds=3)
    assert history.metrics[0]["grpo/rounds"] == 3 and history.metrics[0]["grpo/used"] == 0


def test_rounds_chained():
    one = run_episodes(toy_env(3), sampling(policy_of(), starts(4)), starts(4))
    both = chain_rounds([one, one])
    assert len(both) == both.asked == 8
    assert both.kept.tolist() == list(range(8))
    assert both.chunks["episode"].max() == 7
    lengths = torch.bincount(both.chunks["episode"])
    assert torch.equal(lengths, both.table["chunks"])


def policy_of():
    torch.manual_seed(0)
    return ActorCritic(small_policy(env_spec(toy_env(2))), FlowOptions())


def test_options_out_of_range():
    for wrong, word in (
        ({"group_size": 1}, "group_size must be 2 or more"),
        ({"dynamic_sampling": "on"}, "one of off, mask, refill"),
        ({"success_low": 0.9, "success_high": 0.1}, "success_low 0.9 is above"),
        ({"clip_low": -1}, "grpo.clip_low must be above 0"),
    ):
        with pytest.raises(ValueError, match=word):
            GRPOOptions(**wrong)
    with pytest.raises(ValueError, match=r"data.episodes_per_iteration 16 in groups of 5 .* do not spread evenly"):
        train(1, group_size=5)


def test_it_learns():
    data = ToyData(num_envs=32, episodes_per_iteration=64, evaluate_episodes=0, seed=1, easy=True)
    _, history = train(16, data=data, learning_rate=1e-3, flow=FlowOptions(noise=0.7), group_size=8)
    success = [m["task/reach/success"] for m in history.metrics]
    assert success[0] < 0.3, success
    assert sum(success[-3:]) / 3 > 0.8, success


@pytest.mark.heavy
@pytest.mark.parametrize("task", ["tabletop/pack_lunch", "tabletop/tidy_kitchen"])
def test_groups_of_the_embedded_suite_share_their_states(task):
    """64 episodes in 32 environments, 8 groups: one digest a group, and another one in every group."""
    env = make_env(EnvConfig([task], num_envs=32, sim={"threads": 1}))
    grouped = [Start(0, -1, (3, int(Stream.START), 0, e // 8)) for e in range(64)]
    still = torch.zeros(32, 8, len(env.simulator.action.low))
    proof = GroupStarts(lambda td, chunk, episode: td.set(keys.ACTION, still[: len(td)]), env, grouped)
    run_episodes(env, proof, grouped)
    env.close()
    states = [{k: v for k, v in seen.items() if k != "start"} for seen in proof.seen.values()]  # the counters aside
    digests, entries = {tuple(sorted(state.items())) for state in states}, len(states[0])
    print(f"{task}: {proof.members} episodes, {len(proof.seen)} groups, {len(digests)} digests of {entries} entries")
    assert proof.members == 64 and len(proof.seen) == len(digests) == 8
