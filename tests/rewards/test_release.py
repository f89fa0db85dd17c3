"""The worked examples of the paper's release. On LIBERO they state the clock's reading, 15 steps after ours."""

import pytest

from tests.rewards.strategies import tensors_of
from tests.rewards.test_golden import END, plan, score, trace
from tests.rewards.twin import TwinPlan

IDLE = 15


def chain_of_groups(*stages):
    """Stages of durations, in order."""
    before, rows = set(), []
    for stage in stages:
        rows += [set(before) for _ in stage]
        before |= set(range(len(rows)))
    size = len(rows)
    return tensors_of(TwinPlan(rows, [d for s in stages for d in s], [1.0] * size, [False] * size, [False] * size))


def expect(got, pays, total):
    assert [p for p in got.pay.tolist() if p] == pytest.approx(pays, abs=1e-6)
    assert got.rewards.sum().item() == pytest.approx(total, abs=2e-6)


def test_basic():
    coffee, holds = chain_of_groups([300], [177.5]), trace(520, [(240, END)], [(500, END)])
    expect(score(coffee, holds, 520, preset="release_robocasa"), [0.333333, 0.243429], 2.576762)
    expect(score(coffee, holds, 520, preset="release_robocasa", pace="fixed"), [0.3, 0.3], 2.6)


def test_two_in_one_step_and_rank_not_name():
    dishes = chain_of_groups([244, 247.5], [196])
    both = score(dishes, trace(440, [(244, END)], [(244, END)], [(440, END)]), 440, preset="release_robocasa", chunk=16)
    expect(both, [0.3, 0.6, 0.3], 3.2)
    assert both.rewards[15].item() == pytest.approx(0.9) and both.rewards[27].item() == pytest.approx(2.3)
    swapped = score(dishes, trace(743, [(547, END)], [(300, END)], [(743, END)]), 743, preset="release_robocasa")
    expect(swapped, [0.300303, 0.269118, 0.3], 2.869421)


def test_early_later_stage():
    coffee = chain_of_groups([300], [177.5])
    early = trace(310, [(300, END)], [(100, END)])
    got = score(coffee, early, 310, preset="release_robocasa")
    expect(got, [0.3, 0.596639], 2.896639)
    assert got.credited_at.tolist() == [300, 301]
    shifted = trace(310 - IDLE, [(300 - IDLE, END)], [(100 - IDLE, END)])
    got = score(coffee, shifted, 310 - IDLE, preset="release_libero")
    expect(got, [0.3, 0.6], 2.9)
    assert got.credited_at.tolist() == [300 - IDLE] * 2
    ungated = score(coffee, early, 310, preset="release_robocasa", gate="none")
    expect(ungated, [0.36, 0.383784], 2.743784)
    lost = score(coffee, trace(310, [(300, END)], [(100, 200)]), preset="release_robocasa")
    expect(lost, [0.3], 0.3)


def test_true_at_reset():
    soak = chain_of_groups([178, 239.5, 295.5])  # water, pan, sponge
    holds = trace(720, [(700, END)], [(190, END)], [(0, END)])
    got = score(soak, holds, 720, preset="release_robocasa")
    expect(got, [0.220112, 0.335356, 0.596648], 3.152116)
    # LIBERO drops the stove, on at reset, before it counts ranks.
    stove = chain_of_groups([182.5, 206.5, float("nan")])  # pot 1, pot 2, stove
    holds = trace(420 - IDLE, [(420 - IDLE, END)], [(200 - IDLE, END)], [(0, END)])
    got = score(stove, holds, 420 - IDLE, preset="release_libero")
    expect(got, [0.290504, 0.286275], 2.576779)
    assert got.unpaid.tolist() == [False, False, True]


def test_libero_idle_steps_are_on_the_clock():
    drawer = chain_of_groups([143], [87.5])
    got = score(drawer, trace(230, [(143, END)], [(230, END)]), 230, preset="release_libero")
    expect(got, [0.285050, 0.300860], 2.585910)


def test_counter_task_and_stand_ins_and_other_beta():
    stir = chain_of_groups([193, 207.5], [134], [212])
    holds = trace(760, [(200, END)], [(410, END)], [(540, END)], [(760, END)])
    expect(score(stir, holds, 760, preset="release_robocasa"), [0.294656, 0.298204, 0.304545, 0.294444], 3.191849)
    unknown = chain_of_groups([float("nan")])
    expect(score(unknown, trace(100, [(100 - IDLE, END)]), preset="release_libero"), [0.2], 0.2)
    expect(score(unknown, trace(100, [(100, END)]), preset="release_robocasa"), [0.3], 0.3)
    budget = chain_of_groups([100])
    expect(
        score(budget, trace(100, [(100, END)]), preset="release_robocasa", beta=2 * 1.4 / (1.5 * 14)),
        [0.0666667],
        0.0666667,
    )
    expect(score(budget, trace(300, [(300, END)]), preset="release_robocasa", beta=0.2), [0.05], 0.05)


def test_what_the_release_lacks_is_rejected():
    holds = trace(10, [(5, END)], [(6, END)], [(7, END)])
    for changes in ({"gate": "held"}, {"since": "eligible"}, {"clock": "chunk"}):
        with pytest.raises(ValueError, match="gate latched or none"):
            score(plan(1, 2, 3), holds, preset="release_libero", **changes)
    with pytest.raises(ValueError, match="neither `newly` nor `worth`"):
        score(plan(1, 2, 3, newly=[1]), holds, preset="release_libero")
    with pytest.raises(ValueError, match="flat chain of groups"):
        score(plan(1, 2, 3, order=[set(), set(), {0}]), holds, preset="release_libero")
