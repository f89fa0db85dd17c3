"""The reward equals its brute-force twin: any plan, trace, option and way of cutting the trace into chunks."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structrl.plan import stack_plans
from structrl.rewards import RewardOptions, functional, score_episode
from tests.rewards.strategies import OPTIONS, as_bool, random_plan, random_trace, spec_of, tensors_of
from tests.rewards.twin import TwinResult, twin


def row(values: dict[int, int], size: int, missing: float) -> list:
    return [values.get(i, missing) for i in range(size)]


def assert_state(state: functional.RewardState, e: int, expected: TwinResult, size: int) -> None:
    """The state of environment e equals what the twin found; padding is untouched."""
    assert state.credited_at[e, :size].tolist() == row(expected.credited_at, size, -1)
    assert state.eligible[e, :size].tolist() == row(expected.eligible, size, -1)
    assert [i for i in range(size) if state.unpaid[e, i]] == sorted(expected.unpaid)
    assert [i for i in range(size) if state.complete[e, i]] == sorted(expected.unpaid | set(expected.credited_at))
    assert [i for i in range(size) if state.undone[e, i]] == sorted(expected.undone)
    assert [i for i in range(size) if state.holding[e, i]] == sorted(expected.holding)
    assert [i for i in range(size) if state.lapsed[e, i]] == sorted(expected.lapsed)
    assert [i for i in range(size) if state.out_of_order[e, i]] == sorted(expected.out_of_order)
    assert [i for i in range(size) if state.at_reset[e, i]] == sorted(expected.at_reset)
    interval = state.interval[e, :size].nan_to_num(nan=-1.0).tolist()
    assert interval == row(expected.interval, size, -1)
    assert state.bunched[e].item() == expected.bunched
    assert state.last_credit[e].item() == expected.last_credit
    assert state.succeeded[e].item() == (expected.success_at is not None)
    for name in ("complete", "unpaid", "undone", "holding", "lapsed", "out_of_order", "at_reset"):
        assert not getattr(state, name)[e, size:].any()
    assert (state.eligible[e, size:] == -1).all() and (state.credited_at[e, size:] == -1).all()


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), options=OPTIONS, chunk=st.sampled_from([1, 2, 5, 8]), length=st.integers(1, 150))
def test_score_episode_equals_twin(seed, options, chunk, length):
    rng = random.Random(seed)
    plan = random_plan(rng)
    holds, success = random_trace(rng, len(plan.worth), length)
    expected = twin(plan, holds, success, chunk=chunk, **options)
    got = score_episode(
        tensors_of(plan), as_bool(holds[1:]), success[1:], holds_at_reset=holds[0], chunk=chunk, **options
    )
    size = len(plan.worth)
    assert got.credited_at.tolist() == row(expected.credited_at, size, -1)
    assert got.eligible.tolist() == row(expected.eligible, size, -1)
    assert got.unpaid.nonzero()[:, 0].tolist() == sorted(expected.unpaid)
    assert got.undone.nonzero()[:, 0].tolist() == sorted(expected.undone)
    assert got.out_of_order.nonzero()[:, 0].tolist() == sorted(expected.out_of_order)
    assert got.at_reset.nonzero()[:, 0].tolist() == sorted(expected.at_reset)
    assert got.bunched == expected.bunched
    assert got.credits.nonzero().tolist() == sorted([t - 1, i] for i, t in expected.credited_at.items())
    torch.testing.assert_close(got.pay, torch.tensor(row(expected.pay, size, 0.0)), rtol=1e-6, atol=0)
    torch.testing.assert_close(got.rewards, torch.tensor(expected.chunk_rewards), rtol=1e-6, atol=0)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), options=OPTIONS, chunk=st.sampled_from([1, 4, 16]), envs=st.integers(1, 4))
def test_any_cut_of_a_padded_batch_equals_twin(seed, options, chunk, envs):
    """Environments with different tasks, each cut at its own places, some calls executing no step of some of them."""
    rng = random.Random(seed)
    plans = [random_plan(rng) for _ in range(3)]
    stacked = stack_plans([spec_of(p, f"toy{k}") for k, p in enumerate(plans)])
    task = [rng.randrange(3) for _ in range(envs)]
    rows = stacked.rows(torch.tensor(task))
    width = stacked.valid.shape[1]
    traces = [random_trace(rng, len(plans[k].worth), rng.randint(1, 80)) for k in task]
    resolved = RewardOptions(**options).resolved()

    def padded(steps: list[list[bool]]) -> list[list[bool]]:
        # Padding subtasks and unexecuted steps hold garbage: neither may be read.
        return [[*step, *(rng.random() < 0.5 for _ in range(width - len(step)))] for step in steps]

    state = functional.reset(rows, as_bool([padded([holds[0]])[0] for holds, _ in traces]), resolved)
    at, paid, bonus = [0] * envs, torch.zeros(envs, width).double(), torch.zeros(envs, 1).double()
    while any(t < len(holds) - 1 for t, (holds, _) in zip(at, traces, strict=True)):
        longest = rng.choice([1, 3, 16, 70])
        steps, block, hit = [], [], []
        for t, (holds, success) in zip(at, traces, strict=True):
            n = min(rng.randint(0, longest), len(holds) - 1 - t)
            n = next((k for k in range(1, n + 1) if success[t + k]), n)  # a call stops at success
            steps.append([n])
            hit.append([n > 0 and success[t + n]])
            garbage = [[rng.random() < 0.5 for _ in range(width)] for _ in range(longest - n)]
            block.append(padded(holds[t + 1 : t + 1 + n]) + garbage)
        state, pay, terminal = functional.advance(
            rows, state, as_bool(block), torch.tensor(steps), as_bool(hit), torch.tensor(at)[:, None], resolved, chunk
        )
        paid, bonus = paid + pay, bonus + terminal
        at = [t + n for t, (n,) in zip(at, steps, strict=True)]
    for e, (k, (holds, success)) in enumerate(zip(task, traces, strict=True)):
        expected = twin(plans[k], holds, success, chunk=chunk, **options)
        size = len(plans[k].worth)
        assert_state(state, e, expected, size)
        assert paid[e, :size].tolist() == pytest.approx(row(expected.pay, size, 0.0), rel=1e-12)
        assert not paid[e, size:].any()
        assert bonus[e].item() == (options["terminal"] if expected.success_at else 0.0)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), options=OPTIONS)
def test_listing_order_is_irrelevant(seed, options):
    rng = random.Random(seed)
    plan = random_plan(rng)
    size = len(plan.worth)
    holds, success = random_trace(rng, size, 60)
    order = rng.sample(range(size), size)
    shuffled = tensors_of(plan)
    shuffled = type(shuffled)(
        names=tuple(shuffled.names[i] for i in order),
        prerequisites=shuffled.prerequisites[order][:, order],
        durations=shuffled.durations[order],
        worth=shuffled.worth[order],
        newly=shuffled.newly[order],
        pulse=shuffled.pulse[order],
        task="shuffled",
        path="shuffled.task",
    )
    trace = as_bool(holds)
    first = score_episode(tensors_of(plan), trace[1:], success[1:], holds_at_reset=trace[0], **options)
    second = score_episode(shuffled, trace[1:, order], success[1:], holds_at_reset=trace[0, order], **options)
    assert torch.equal(first.pay[order], second.pay)
    assert torch.equal(first.credited_at[order], second.credited_at)
