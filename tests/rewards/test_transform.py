import itertools
import math
import random

import pytest
import torch
from torchrl.envs import TransformedEnv, step_mdp
from torchrl.envs.utils import check_env_specs

from structrl.plan import stack_plans
from structrl.rewards import RewardOptions, StructuredReward
from tests.rewards.strategies import random_plan, random_trace, spec_of
from tests.rewards.toy import ToyEnv
from tests.rewards.twin import TwinPlan, twin

CHUNK = 4


def toy(num_envs=5, seed=0, options=None):
    """Three stacked tasks of different size; every environment plays random episodes of random tasks."""
    rng = random.Random(seed)
    plans = [random_plan(rng) for _ in range(3)]
    stacked = stack_plans([spec_of(p, f"toy{k}") for k, p in enumerate(plans)])
    episodes = {}

    def script(e, k):
        if (e, k) not in episodes:
            task = rng.randrange(3)
            episodes[e, k] = (task, *random_trace(rng, len(plans[task].worth), rng.randint(2, 30)))
        return episodes[e, k]

    width = stacked.valid.shape[1]
    base = ToyEnv(num_envs, CHUNK, width, script)
    return TransformedEnv(base, StructuredReward(stacked, options or RewardOptions(), CHUNK)), plans, script


@pytest.mark.parametrize("seed", range(3))
def test_check_env_specs(seed):
    env, _, _ = toy(seed=seed)
    check_env_specs(env)
    env, _, _ = toy(seed=seed)
    check_env_specs(env, break_when_any_done="both")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("changes", [{}, {"gate": "held", "since": "eligible"}, {"gate": "none", "clock": "chunk"}])
def test_partial_resets_of_stacked_tasks_equal_twin(seed, changes):
    """Whatever its neighbours do, and however often it was reset before, each episode is scored as if alone."""
    env, plans, script = toy(seed=seed, options=RewardOptions(**changes))
    rng = random.Random(seed)
    td = env.reset()
    num_envs = env.batch_size[0]
    earned = [[] for _ in range(num_envs)]
    finished = 0
    for _ in range(60):
        td = env.step(td.set("action", torch.zeros(num_envs, CHUNK, 2)))
        after = td["next"]
        parts = after["reward_parts", "subtask"] + after["reward_parts", "terminal"]
        torch.testing.assert_close(after["reward"], parts)
        for e in range(num_envs):
            if after["steps"][e] > 0:
                earned[e].append(after["reward"][e].item())
            else:
                assert after["reward"][e] == 0
        td = step_mdp(td)
        # A finished environment may idle for a while before its reset; an unfinished one may be cut short.
        mask = [[(bool(td["done"][e]) and rng.random() < 0.7) or rng.random() < 0.03] for e in range(num_envs)]
        for e in range(num_envs):
            if not mask[e][0]:
                continue
            task, holds, success = script(e, env.base_env.episode[e])
            t = int(td["t"][e])
            expected = twin(plans[task], holds[: t + 1], success[: t + 1], chunk=CHUNK, **changes)
            assert earned[e] == pytest.approx(expected.chunk_rewards, rel=1e-6)
            size = len(plans[task].worth)
            assert td["plan", "credited_at"][e, :size].tolist() == [
                expected.credited_at.get(i, -1) for i in range(size)
            ]
            assert td["plan", "unpaid"][e].nonzero()[:, 0].tolist() == sorted(expected.unpaid)
            assert td["plan", "undone"][e].nonzero()[:, 0].tolist() == sorted(expected.undone)
            assert td["plan", "bunched"][e].item() == expected.bunched
            earned[e] = []
            finished += 1
        if any(m[0] for m in mask):
            td = env.reset(td.set("_reset", torch.tensor(mask)))
    assert finished > 20


def test_reward_state_layout():
    """Two tasks, the smaller padded: every entry of the documented layout, at reset and after one chunk."""
    lid = TwinPlan([set(), {0}, {0, 1}], [10.0, 20.0, 40.0], [1.0] * 3, [False, False, True], [False] * 3)
    small = TwinPlan([set()], [8.0], [1.0], [False], [False])
    stacked = stack_plans([spec_of(lid, "lid", 50), spec_of(small, "small", 20)])
    traces = [
        (0, [[False, True, True]] + [[False, True, True]] * 2 + [[True, True, True]] * 4, [False] * 7),
        (1, [[False]] * 5, [False] * 5),
    ]
    env = TransformedEnv(ToyEnv(2, CHUNK, 3, lambda e, k: traces[e]), StructuredReward(stacked, RewardOptions(), CHUNK))
    td = env.reset()
    assert td["reward_state"].shape == (2, env.transform.reward_state_dim)
    blocks = {
        # mask, complete, eligible, unpaid, payable, pace, counters
        0: [[1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0, 0]],
        1: [[1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0, 0]],
    }
    for e in blocks:
        assert td["reward_state"][e].tolist() == pytest.approx([*itertools.chain(*blocks[e])])
    td = env.step(td.set("action", torch.zeros(2, CHUNK, 2)))["next"]
    pace = torch.log1p(torch.tensor([1 / 10, 1 / 20, 1 / 40])).tolist()  # T = 1 since the credit at t = 3
    # s1 had held since reset: unpaid. s2 must turn true anew, and has not been false since: not payable.
    blocks[0] = [[1, 1, 1], [1, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0], pace, [4 / 50, 1 / 50, 1 / 3, 0]]
    blocks[1] = [
        [1, 0, 0],
        [0, 0, 0],
        [1, 0, 0],
        [0, 0, 0],
        [1, 0, 0],
        [math.log(1.5), 0, 0],
        [0.2, 0.2, 0, 0],
    ]
    for e in blocks:
        assert td["reward_state"][e].tolist() == pytest.approx([*itertools.chain(*blocks[e])])
    assert td["reward"][0].item() == pytest.approx(0.6 / (1 + 3 / 10))


def test_errors_name_the_file_and_the_remedy():
    plan = TwinPlan([set(), {0}], [10.0, float("nan")], [1.0] * 2, [False] * 2, [False] * 2)
    missing = stack_plans([spec_of(plan, "lunch")])
    with pytest.raises(ValueError, match=r"lunch\.task: no duration \(T_d\) for s1.*structrl calibrate"):
        StructuredReward(missing, RewardOptions(), CHUNK)
    for preset in ("sparse", "fixed_ungated", "fixed_gated"):
        StructuredReward(missing, RewardOptions(preset=preset), CHUNK)
    endless = stack_plans([spec_of(plan, "lunch", horizon=None)])
    with pytest.raises(ValueError, match=r"lunch\.task: the task has no horizon"):
        StructuredReward(endless, RewardOptions(pace="fixed"), CHUNK)
    reward = StructuredReward(missing, RewardOptions(pace="fixed"), CHUNK + 1)
    with pytest.raises(ValueError, match=r"holds has shape \[1, 5, 2\]; chunk 5"):
        _ = TransformedEnv(ToyEnv(1, CHUNK, 2, lambda e, k: None), reward).observation_spec


def test_step_without_plan_says_so():
    env, _, _ = toy()
    td = env.reset().exclude("plan")
    with pytest.raises(KeyError, match="reset the environment first"):
        env.step(td.set("action", torch.zeros(5, CHUNK, 2)))
