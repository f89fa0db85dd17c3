"""Golden cases of the reward, each worked out by hand from its rules."""

import pytest
import torch

from structrl.rewards import RewardOptions, score_episode
from tests.rewards.strategies import tensors_of
from tests.rewards.twin import TwinPlan


def plan(*durations, order="chain", newly=(), pulse=(), worth=None):
    """A chain, or a group (`order=None`), or the given prerequisites."""
    size = len(durations)
    chain, group = [set(range(i)) for i in range(size)], [set() for _ in range(size)]
    before = chain if order == "chain" else group if order is None else order
    return tensors_of(
        TwinPlan(
            before,
            list(durations),
            [(worth or {}).get(i, 1.0) for i in range(size)],
            [i in newly for i in range(size)],
            [i in pulse for i in range(size)],
        )
    )


def trace(length, *intervals):
    """bool [length + 1, N]: subtask i holds from `first` up to and without `until`, for each (first, until) given."""
    holds = torch.zeros(length + 1, len(intervals), dtype=torch.bool)
    for i, spans in enumerate(intervals):
        for first, until in spans:
            holds[first:until, i] = True
    return holds


def score(plan, holds, success_at=None, **options):
    success = torch.arange(1, len(holds)) == success_at if success_at else torch.zeros(len(holds) - 1)
    return score_episode(plan, holds[1:], success, holds_at_reset=holds[0], **options)


END = 10**6


def test_open_put_close_with_the_drawer_closed_at_reset_pays_three():
    drawer = plan(50, 40, 30)
    got = score(drawer, trace(200, [(40, 150)], [(100, END)], [(0, 40), (150, END)]), success_at=150)
    assert got.credited_at.tolist() == [40, 100, 150]
    assert not got.unpaid.any()
    expected = [0.6 / (1 + 40 / 50), 0.6 / (1 + 60 / 40), 0.6 / (1 + 50 / 30)]
    assert got.pay.tolist() == pytest.approx(expected)
    assert got.rewards.sum().item() == pytest.approx(sum(expected) + 2.0)
    assert got.undone.tolist() == [True, False, False]  # the drawer is closed again


def test_an_untouched_lid_pays_nothing_and_moves_no_clock():
    lid = plan(50, 30, 20)  # put, lid closed, then something more
    got = score(lid, trace(100, [(40, END)], [(0, END)], [(60, END)]))
    assert got.unpaid.tolist() == [False, True, False]
    assert got.credited_at.tolist() == [40, -1, 60]
    assert got.pay.tolist() == pytest.approx([0.6 / (1 + 40 / 50), 0, 0.6 / (1 + 20 / 20)])
    assert got.complete.all()


def test_pre_satisfied_lid_closes_later_step_without_moving_the_clock():
    # The lid, true since reset, completes unpaid at t = 0; the put pays from the start, not from it.
    got = score(plan(20, 50), trace(60, [(0, END)], [(50, END)]))
    assert got.unpaid.tolist() == [True, False]
    assert got.pay.tolist() == pytest.approx([0, 0.3])
    assert got.eligible.tolist() == [0, 0]


def test_an_unpaid_fixpoint_at_reset_cascades():
    got = score(plan(5, 5, 5), trace(20, [(0, 3)], [(0, END)], [(10, END)]))
    assert got.unpaid.tolist() == [True, True, False]
    assert got.interval[2] == 10


def test_a_lid_that_only_flickered_is_paid():
    got = score(plan(50, 30), trace(100, [(40, END)], [(0, 10), (11, END)]))
    assert got.credited_at.tolist() == [40, 40]  # false at t = 10: no longer pre-satisfied, completes with its gate


def test_one_clock_for_all_credits_of_a_step_whatever_the_listing_order():
    holds = trace(60, [(30, END)], [(30, END)], [(30, END)])
    for durations in ([10, 20, 30], [30, 10, 20]):
        got = score(plan(*durations, order=None), holds)
        assert got.interval.tolist() == [30, 30, 30]
        assert got.pay.tolist() == pytest.approx([0.6 / (1 + 30 / d) for d in durations])
    # A cascade along a chain listed backwards is one step as well.
    got = score(plan(10, 20, 30, order=[{1, 2}, {2}, set()]), holds)
    assert got.interval.tolist() == [30, 30, 30]


def test_early_and_still_true_counts_when_its_turn_comes_and_undone_does_not():
    chain = plan(40, 20)
    assert score(chain, trace(100, [(50, END)], [(10, END)])).credited_at.tolist() == [50, 50]
    assert score(chain, trace(100, [(50, END)], [(10, 49)])).credited_at.tolist() == [50, -1]


def test_newly_needs_a_false_step_after_eligibility():
    stirred = plan(40, 20, newly=[1])
    assert score(stirred, trace(100, [(50, END)], [(10, END)])).credited_at.tolist() == [50, -1]
    assert score(stirred, trace(100, [(50, END)], [(10, 50), (60, END)])).credited_at.tolist() == [50, 60]
    # False at the very step of eligibility is enough, false only before it is not.
    assert score(stirred, trace(100, [(50, END)], [(10, 50), (51, END)])).credited_at.tolist() == [50, 51]
    assert score(stirred, trace(100, [(50, END)], [(10, 40), (41, END)])).credited_at.tolist() == [50, -1]
    # Never pre-satisfied: true at reset, it neither completes unpaid nor pays before it was false.
    first = plan(20, newly=[0])
    got = score(first, trace(100, [(0, 30), (50, END)]))
    assert got.credited_at.tolist() == [50] and not got.unpaid.any()


def test_pace_against_the_designs_formula():
    assert score(plan(61.0), trace(200, [(61, END)])).pay.item() == pytest.approx(0.3)  # demonstration pace
    assert score(plan(61.0), trace(200, [(122, END)])).pay.item() == pytest.approx(0.2)
    assert score(plan(0.2), trace(200, [(4, END)])).pay.item() == pytest.approx(0.6 / 5)  # T_d is at least 1
    assert score(plan(61.0, worth={0: 3.0}), trace(99, [(61, END)])).pay.item() == pytest.approx(0.9)
    assert score(plan(61.0), trace(200, [(9, END)]), pace="fixed").pay.item() == pytest.approx(0.3)
    assert score(plan(61.0), trace(200, [(9, END)]), pace="fixed", beta=1.0).pay.item() == pytest.approx(0.5)


def test_chunk_clock():
    # H = 16: step 30 is chunk 2, 33 chunk 3, 47 chunk 3, 100 chunk 7; both credits of chunk 3 look back to chunk 2.
    holds = trace(112, [(30, END)], [(33, END)], [(47, END)], [(100, END)])
    got = score(plan(40, 24, 16, 8), holds, chunk=16, clock="chunk")
    assert got.interval.tolist() == [2, 1, 1, 4]
    expected = [0.6 / (1 + 2 / 2.5), 0.6 / (1 + 1 / 1.5), 0.6 / (1 + 1 / 1), 0.6 / (1 + 4 / 1)]
    assert got.pay.tolist() == pytest.approx(expected)
    assert got.rewards.tolist() == pytest.approx([0, expected[0], expected[1] + expected[2], 0, 0, 0, expected[3]])
    steps = score(plan(40, 24, 16, 8), holds, chunk=16)
    assert steps.interval.tolist() == [30, 3, 14, 53]
    assert steps.rewards.sum().item() == pytest.approx(steps.pay.sum().item())


def test_success_pays_its_steps_credits_then_the_bonus_and_forfeits_the_rest():
    got = score(plan(10, 10), trace(40, [(20, END)], [(21, END)]), success_at=20, chunk=8)
    assert got.credited_at.tolist() == [20, -1]
    assert got.rewards.tolist() == pytest.approx([0, 0, 0.2 + 2.0, 0, 0])
    assert got.terminal == 2.0
    got = score_episode(plan(10), torch.zeros(3, 1), [False, True, True], terminal=5.0)
    assert got.rewards.tolist() == [0, 5, 0]  # once


def test_since_eligible_is_indifferent_to_bunching_inside_a_group():
    group = plan(50, 50, order=None)
    holds = trace(100, [(40, END)], [(45, END)])
    bunched = score(group, holds)
    assert bunched.interval.tolist() == [40, 5] and bunched.bunched == 1
    indifferent = score(group, holds, since="eligible")
    assert indifferent.interval.tolist() == [40, 45] and indifferent.bunched == 0
    # The clock of a later stage starts at its prerequisites' latest credit.
    staged = plan(50, 50, 10, order=[set(), set(), {0, 1}])
    got = score(staged, trace(100, [(40, END)], [(45, END)], [(60, END)]), since="eligible")
    assert got.interval.tolist() == [40, 45, 15]


def test_gates():
    chain = plan(20, 20)
    holds = trace(100, [(20, 30), (50, END)], [(40, END)])
    assert score(chain, holds).credited_at.tolist() == [20, 40]
    assert score(chain, holds, gate="held").credited_at.tolist() == [20, 50]
    early = trace(100, [(50, END)], [(10, 20)])
    assert score(chain, early).credited_at.tolist() == [50, -1]
    assert score(chain, early, gate="none").credited_at.tolist() == [50, 10]
    # A completed pulse counts as holding, and is never undone.
    button = plan(20, 20, pulse=[0])
    got = score(button, trace(100, [(20, 21)], [(40, END)]), gate="held")
    assert got.credited_at.tolist() == [20, 40] and not got.undone.any()


def test_held_eligibility_starts_when_the_prerequisites_hold():
    # s1 completes at 30 while s0 is dropped; s2 becomes eligible at 50, when both hold, and must turn true after that.
    plan_ = plan(20, 20, 20, order=[set(), set(), {0, 1}], newly=[2])
    holds = trace(100, [(20, 25), (50, END)], [(30, END)], [(35, 60), (70, END)])
    got = score(plan_, holds, gate="held")
    assert got.eligible.tolist() == [0, 0, 50]
    assert got.credited_at.tolist() == [20, 30, 70]


def test_presets():
    chain, holds = plan(40, 20), trace(100, [(40, END)], [(10, 20), (70, END)])
    kwargs = {"success_at": 80}
    sparse = score(chain, holds, preset="sparse", **kwargs)
    assert sparse.rewards.sum() == 2.0 and sparse.credited_at.tolist() == [40, 70]
    assert score(chain, holds, preset="fixed_gated", **kwargs).pay.tolist() == pytest.approx([0.3, 0.3])
    ungated = score(chain, holds, preset="paced_ungated", **kwargs)
    assert ungated.credited_at.tolist() == [40, 10]
    assert ungated.pay.tolist() == pytest.approx([0.6 / (1 + 30 / 40), 0.6 / (1 + 10 / 20)])
    fixed = score(chain, holds, preset="fixed_ungated", **kwargs)
    assert fixed.credited_at.tolist() == [40, 10] and fixed.pay.tolist() == pytest.approx([0.3, 0.3])
    assert torch.equal(score(chain, holds, preset="structrl", **kwargs).rewards, score(chain, holds, **kwargs).rewards)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate": "open"}, "reward.gate is 'open'; choose one of latched, held, none"),
        ({"preset": "dense"}, "reward.preset is 'dense'; choose one of sparse, "),
        ({"preset": "structrl", "gate": "none"}, "preset 'structrl' sets gate to latched, but reward.gate is none"),
        ({"preset": "sparse", "beta": 1.0}, "preset 'sparse' sets beta to 0.0, but reward.beta is 1.0"),
        ({"beta": -1.0}, "reward.beta is -1.0"),
    ],
)
def test_options_are_checked(changes, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        RewardOptions(**changes).resolved()
    with pytest.raises(ValueError, match=message):
        score_episode(plan(1.0), torch.zeros(2, 1), torch.zeros(2), **changes)


def test_missing_durations_and_wrong_shapes_are_errors():
    unknown = plan(10.0, float("nan"))
    with pytest.raises(ValueError, match=r"toy\.task: no duration \(T_d\) for s1.*structrl calibrate toy\.task"):
        score_episode(unknown, torch.zeros(2, 2), torch.zeros(2))
    assert score_episode(unknown, torch.ones(2, 2), torch.zeros(2), pace="fixed").pay.tolist() == pytest.approx(
        [0.3] * 2
    )
    with pytest.raises(ValueError, match=r"holds has shape \[2, 3\]; expected \[T, 2\]"):
        score_episode(unknown, torch.zeros(2, 3), torch.zeros(2), pace="fixed")
    with pytest.raises(ValueError, match=r"success has shape \[3\]; expected \[2\]"):
        score_episode(unknown, torch.zeros(2, 2), torch.zeros(3), pace="fixed")
    with pytest.raises(ValueError, match=r"holds_at_reset has shape \[1\]; expected \[2\]"):
        score_episode(unknown, torch.zeros(2, 2), torch.zeros(2), holds_at_reset=[True], pace="fixed")
    with pytest.raises(ValueError, match="chunk is 0"):
        score_episode(unknown, torch.zeros(2, 2), torch.zeros(2), chunk=0, pace="fixed")


def test_score_a_bare_expression():
    """The README's example: two items in any order, then the lid."""
    text = "group < add(apple, box); add(drink, box) > then close(box)"
    holds = trace(20, [(12, END)], [(6, END)], [(3, 5), (18, END)])
    with pytest.raises(ValueError, match=r"no duration \(T_d\) for add_apple_box, .* `structrl calibrate FILE.task"):
        score(text, holds)
    got = score(text, holds, pace="fixed", success_at=18)
    assert got.credited_at.tolist() == [12, 6, 18]
    assert got.rewards.sum().item() == pytest.approx(2.9)
