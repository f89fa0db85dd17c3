"""Presets and explicit options, the budget, and potential-based shaping: its sum does not depend on the path."""

import random
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrl.envs import TransformedEnv, step_mdp

from structrl.plan import stack_plans
from structrl.rewards import RewardOptions, StructuredReward, score_episode
from structrl.rewards.options import PRESETS
from tests.rewards.strategies import as_bool, random_plan, random_trace, spec_of, tensors_of
from tests.rewards.test_golden import END, plan, score, trace
from tests.rewards.toy import ToyEnv


def test_an_explicit_value_that_contradicts_the_preset_is_an_error_even_if_it_is_the_default():
    for changes, what in (
        ({"preset": "fixed_gated", "pace": "dynamic"}, "sets pace to fixed, but reward.pace is dynamic"),
        ({"preset": "sparse", "beta": 0.6}, "sets beta to 0.0, but reward.beta is 0.6"),
        ({"preset": "paced_ungated", "gate": "latched"}, "sets gate to none, but reward.gate is latched"),
    ):
        with pytest.raises(ValueError, match=what):
            RewardOptions(**changes).resolved()
    assert RewardOptions(preset="structrl", pace="dynamic", terminal=1.0).resolved().terminal == 1.0


def test_resolved_options_are_options_again():
    for preset in (None, *PRESETS):
        resolved = RewardOptions(preset=preset).resolved()
        assert RewardOptions(**asdict(resolved)).resolved() == resolved


def test_gamma_only_where_it_counts():
    with pytest.raises(ValueError, match=r"reward\.gamma has no effect"):
        RewardOptions(gamma=0.9).resolved()
    assert RewardOptions(preset="potential").resolved().gamma == 0.99
    with pytest.raises(ValueError, match=r"reward\.gamma is 1\.5"):
        RewardOptions(preset="potential", gamma=1.5).resolved()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    chunk=st.sampled_from([1, 4, 7]),
    gamma=st.sampled_from([1.0, 0.99, 0.5]),
    budget=st.sampled_from([None, 0.5]),
)
def test_shaping_telescopes(seed, chunk, gamma, budget):
    """Whatever happened: sum of gamma^c F_c = 0, and with it sum of gamma^c r_c is the discounted terminal bonus."""
    rng = random.Random(seed)
    task = random_plan(rng)
    holds, success = random_trace(rng, len(task.worth), rng.randint(1, 60))
    got = score_episode(
        tensors_of(task), as_bool(holds[1:]), success[1:], holds_at_reset=holds[0], chunk=chunk, preset="potential",
        gamma=gamma, budget=budget,
    )  # fmt: skip
    discount = gamma ** torch.arange(len(got.rewards))
    end = next((t for t in range(1, len(success)) if success[t]), None)
    bonus = 0.0 if end is None else 2.0 * gamma ** ((end - 1) // chunk)
    assert (discount * got.rewards).sum().item() == pytest.approx(bonus, abs=1e-5)
    fixed = score_episode(
        tensors_of(task), as_bool(holds[1:]), success[1:], holds_at_reset=holds[0], preset="fixed_gated"
    )
    assert torch.equal(fixed.credited_at, got.credited_at), "the same credits"


def test_shaping_by_hand():
    got = score(plan(10, 10), trace(12, [(3, END)], [(7, END)]), success_at=9, chunk=4, preset="potential", gamma=0.9)
    # potentials before and after the chunks 1-4, 5-8, 9-12: 0, .3, .6, and 0 at the end
    assert got.rewards.tolist() == pytest.approx([0.9 * 0.3, 0.9 * 0.6 - 0.3, -0.6 + 2.0])


def test_transform_shapes_as_score_episode_does():
    """Chunk by chunk through the environment, success or not; an environment that stands still earns nothing."""
    rng = random.Random(3)
    task = random_plan(rng)
    episodes = [(0, *random_trace(rng, len(task.worth), rng.randint(5, 30))) for _ in range(6)]
    options = RewardOptions(preset="potential", gamma=0.9)
    reward = StructuredReward(stack_plans([spec_of(task)]), options, 4)
    env = TransformedEnv(ToyEnv(6, 4, len(task.worth), lambda e, k: episodes[e]), reward)
    td, paid = env.reset(), [[] for _ in range(6)]
    for _ in range(10):
        td = env.step(td.set("action", torch.zeros(6, 4, 2)))
        for e in range(6):
            if td["next", "steps"][e] > 0:
                paid[e].append(td["next", "reward"][e].item())
            else:
                assert td["next", "reward"][e] == 0
        td = step_mdp(td)
    assert any(any(p) for p in paid)
    for e, (_, holds, success) in enumerate(episodes):
        got = score_episode(
            tensors_of(task), as_bool(holds[1:]), success[1:], holds_at_reset=holds[0], chunk=4, preset="potential",
            gamma=0.9,
        )  # fmt: skip
        assert paid[e] == pytest.approx(got.rewards.tolist()[: len(paid[e])], abs=1e-6)


def test_budget_bounds_what_subtasks_can_earn():
    at_once = trace(20, [(1, END)], [(1, END)], [(1, END)])
    free = score(plan(1e9, 1e9, 1e9, worth={0: 2.0}), at_once)
    assert free.pay.sum() == pytest.approx(0.6 * 4, rel=1e-3)
    bound = score(plan(1e9, 1e9, 1e9, worth={0: 2.0}), at_once, budget=0.8)
    assert bound.pay.tolist() == pytest.approx([0.4, 0.2, 0.2], rel=1e-3), "shared by worth"
    assert score(plan(1e9, 1e9, 1e9), at_once, budget=100.0).pay.tolist() == pytest.approx([0.6] * 3, rel=1e-3)
    # the release's budget B = 1.4 with 14 subtasks: 2 B / (1.5 * 14) each, see test_release
    many = score(plan(*[1e9] * 14, order=None), trace(5, *[[(1, END)]] * 14), budget=1.4 * 4 / 3)
    assert many.pay.tolist() == pytest.approx([2 * 1.4 / (1.5 * 14)] * 14, rel=1e-3)
    with pytest.raises(ValueError, match=r"reward\.budget is 0"):
        RewardOptions(budget=0).resolved()
    with pytest.raises(ValueError, match="pace dynamic or fixed"):
        score(plan(1, 2), trace(5, [(1, END)], [(2, END)]), preset="release_libero", budget=1.0)


def test_what_is_true_since_reset_is_not_out_of_order():
    """open then put then close, the drawer closed at reset: only a drawer closed again too early is worth a word."""
    drawer = plan(50, 40, 30)
    calm = score(drawer, trace(200, [(40, 150)], [(100, END)], [(0, 40), (150, END)]), success_at=150)
    assert not calm.out_of_order.any() and not calm.at_reset.any()
    early = score(drawer, trace(200, [(40, 60)], [(100, END)], [(0, 40), (60, END)]))
    assert early.out_of_order.tolist() == [False, False, True]
    lid = score(plan(20, 50), trace(60, [(0, END)], [(50, END)]))
    assert lid.at_reset.tolist() == [True, False]
    newly = score(plan(20, 50, newly=[1]), trace(60, [(30, END)], [(0, 40), (45, END)]))
    assert not newly.out_of_order.any()
