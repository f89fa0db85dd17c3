"""Metrics of a hand-made table, and of a real run against sums over its chunks."""

import math
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from structrl import keys
from structrl.envs import EnvConfig
from structrl.plan import stack_plans
from structrl.rewards import RewardOptions
from structrl.rl.metrics import episode_metrics, layout
from structrl.rl.module import PPO
from structrl.rl.rollout import run_episodes
from structrl.seeding import Stream
from structrl.sims.base import Start
from tests.rl.toy_data import CHUNK, TASKS, toy_env

PLANS = stack_plans(TASKS)  # `pair` of 2 subtasks and `chain` of 3, all with T_d = 5
NAN = math.nan


def table():
    """Two episodes of `pair`, one of `chain`."""
    data = {
        keys.TASK: torch.tensor([0, 1, 0]),
        keys.SUCCESS: torch.tensor([True, False, False]),
        keys.FAILED: torch.tensor([False, True, False]),
        "return": torch.tensor([2.6, 0.3, 0.0]),
        "length": torch.tensor([12, 30, 24]),
        keys.REWARD_PARTS: {"subtask": torch.tensor([0.6, 0.3, 0.0]), "terminal": torch.tensor([2.0, 0.0, 0.0])},
        "complete": torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0]], dtype=torch.bool),
        "unpaid": torch.tensor([[0, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.bool),
        "undone": torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.bool),
        "out_of_order": torch.tensor([[0, 1, 0], [0, 1, 1], [0, 0, 0]], dtype=torch.bool),
        "at_reset": torch.tensor([[0, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.bool),
        "credited_at": torch.tensor([[4, 12, -1], [7, -1, -1], [-1, -1, -1]]),
        "interval": torch.tensor([[4.0, 8.0, NAN], [7.0, NAN, NAN], [NAN, NAN, NAN]]),
        "bunched": torch.tensor([1, 0, 0]),
    }
    return TensorDict(data, [3])


def test_hand_made_table():
    metrics = episode_metrics(table(), PLANS)
    wanted = {
        "charts/episodic_return": 2.9 / 3,
        "charts/episodic_length": 22,
        "charts/success": 1 / 3,
        "reward/subtask": 0.3,
        "reward/terminal": 2 / 3,
        "reward/bunched": 1 / 3,
        "reward/unpaid": 1 / 3,
        "reward/undone": 1 / 3,
        "reward/audit/out_of_order": 1,
        "reward/audit/at_reset": 1 / 3,
        "reward/audit/success_without_all": 0,
        "reward/audit/all_without_success": 0,
        "task/pair/success_without_all": 0,
        "task/pair/all_without_success": 0,
        "task/chain/success_without_all": 0,
        "task/chain/all_without_success": 0,
        "task/pair/subtask/s0/out_of_order": 0,
        "task/pair/subtask/s1/out_of_order": 0.5,
        "task/chain/subtask/s0/out_of_order": 0,
        "task/chain/subtask/s1/out_of_order": 1,
        "task/chain/subtask/s2/out_of_order": 1,
        "task/pair/success": 0.5,
        "task/pair/return": 1.3,
        "task/pair/length": 18,
        "task/pair/failed": 0,
        "task/pair/subtask/s0/rate": 0.5,
        "task/pair/subtask/s0/step": 4,
        "task/pair/subtask/s0/pace": 0.8,
        "task/pair/subtask/s0/undone": 1,
        "task/pair/subtask/s0/unpaid": 0,
        "task/pair/subtask/s1/rate": 1,
        "task/pair/subtask/s1/step": 12,
        "task/pair/subtask/s1/pace": 1.6,
        "task/pair/subtask/s1/undone": 0,
        "task/pair/subtask/s1/unpaid": 0.5,
        "task/chain/success": 0,
        "task/chain/return": 0.3,
        "task/chain/length": 30,
        "task/chain/failed": 1,
        "task/chain/subtask/s0/rate": 1,
        "task/chain/subtask/s0/step": 7,
        "task/chain/subtask/s0/pace": 1.4,
        "task/chain/subtask/s0/undone": 0,
        "task/chain/subtask/s0/unpaid": 0,
        "task/chain/subtask/s1/rate": 0,
        "task/chain/subtask/s1/unpaid": 0,
        "task/chain/subtask/s2/rate": 0,
        "task/chain/subtask/s2/unpaid": 0,
    }
    assert metrics == pytest.approx(wanted)


def test_success_and_subtasks_that_disagree():
    """`pair` succeeds with a subtask open, `chain` completes its three and fails; padding is no open subtask."""
    odd = table().clone()
    odd["complete"] = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    metrics = episode_metrics(odd, PLANS)
    wanted = {
        "reward/audit/success_without_all": 1 / 3,
        "reward/audit/all_without_success": 2 / 3,
        "task/pair/success_without_all": 1 / 2,
        "task/pair/all_without_success": 1 / 2,
        "task/chain/success_without_all": 0,
        "task/chain/all_without_success": 1,
    }
    assert {k: metrics[k] for k in wanted} == pytest.approx(wanted)


def test_pace_is_a_ratio_of_steps_whatever_the_clock():
    """T of the table is in ticks of the reward's clock; T_d is in steps."""
    chunked = table().clone()
    chunked["interval"] /= 4
    assert episode_metrics(chunked, PLANS, tick=4) == pytest.approx(episode_metrics(table(), PLANS))


@pytest.mark.parametrize("clock", ["step", "chunk"])
def test_pace_of_a_run(clock):
    """The module knows which clock the environment's reward has."""
    rewards = RewardOptions(clock=clock)
    module = PPO()
    module._trainer = SimpleNamespace(
        datamodule=SimpleNamespace(plans=PLANS, env=EnvConfig(tasks=["toy"], chunk=4, reward=rewards))
    )
    pace = module._episode_metrics(table())["task/pair/subtask/s0/pace"]
    assert pace == pytest.approx(0.8 if clock == "step" else 3.2)


def test_a_task_without_episodes_has_no_metrics():
    metrics = episode_metrics(table()[torch.tensor([0, 2])], PLANS)
    assert not [k for k in metrics if "chain" in k]


def test_real_episodes():
    """A policy that pushes along all axes completes everything; the table agrees with the chunks."""
    starts = [Start(e % 2, -1, (0, Stream.START, 0, e)) for e in range(6)]

    def push(td, chunk, episode):
        return td.set(keys.ACTION, torch.ones(len(td), CHUNK, 3))

    out = run_episodes(toy_env(4), push, starts)
    assert out.table[keys.SUCCESS].all()
    for p in range(6):
        rewards = out.chunks["next", keys.REWARD][out.chunks["episode"] == p]
        torch.testing.assert_close(rewards.sum(), out.table["return"][p])
        steps = out.chunks["next", keys.STEPS][out.chunks["episode"] == p]
        assert steps.sum() == out.table["length"][p]
    parts = out.table[keys.REWARD_PARTS]
    torch.testing.assert_close(parts["subtask"] + parts["terminal"], out.table["return"])
    assert (parts["terminal"] == 2).all()
    metrics = episode_metrics(out.table, PLANS)
    rates = {k: v for k, v in metrics.items() if k.endswith("/rate")}
    assert rates == dict.fromkeys(rates, 1.0)
    assert len(rates) == 5
    last = out.table["credited_at"].amax(1)
    assert torch.equal(last, out.table["length"]), "success comes with the last subtask"


def test_layout_shows_metrics_that_exist():
    metrics = set(episode_metrics(table(), PLANS))
    tags = {tag[1:-1] for charts in layout(PLANS).values() for _, tags in charts.values() for tag in tags}
    shown = {t for t in tags if t.startswith(("task/", "reward/"))}
    assert {t for t in metrics if t.startswith("reward/audit/")} <= shown
    possible = metrics | {f"task/chain/subtask/s{i}/{what}" for i in (1, 2) for what in ("step", "pace")}
    assert shown <= possible
    assert {"task/pair/success", "task/chain/subtask/s2/rate", "reward/terminal"} <= shown
