import dataclasses

import pytest

from structrl.imitation.calibrate import measure, table
from tests.evaluate.example import TASK, episode

N, A, D, C = [1, 1, 0, 1.5], [-1, 1, 0, 1.5], [-1, -1, 0, 1.5], [-1, -1, 0, 0.05]


def demo(apple, drink, close):
    """Conditions become true at these steps, apple first, and stay."""
    assert apple < drink < close
    return episode([N] * apple + [A] * (drink - apple) + [D] * (close - drink) + [C])


def test_mean_and_median_since_the_last_credit():
    found = measure(TASK, [demo(4, 6, 7), demo(8, 9, 14), demo(3, 7, 9)])
    assert [m.label for m in found] == ["apple_in", "drink_in", "close"]
    assert [m.times for m in found] == [(4, 8, 3), (2, 1, 4), (1, 5, 2)]
    assert [m.mean for m in found] == [5.0, 2.3, 2.7]
    assert found[0].comment("credit") == "mean 5, median 4 of 3 demonstrations, since the last credit"


def test_since_the_last_prerequisite():
    """The paper's wording: a subtask without prerequisites is timed from the start."""
    found = measure(TASK, [demo(4, 6, 7), demo(8, 9, 14)], "prerequisites")
    assert [m.times for m in found] == [(4, 8), (6, 9), (1, 5)]


def test_demonstration_pace_pays_half():
    """What calibration is for: with the mean as T_d, a demonstration of exactly that pace is paid beta / 2 each."""
    from structrl.rewards import score_episode

    one = demo(4, 6, 9)
    found = measure(TASK, [one])
    subtasks = tuple(dataclasses.replace(s, duration=m.mean) for s, m in zip(TASK.subtasks, found, strict=True))
    score = score_episode(dataclasses.replace(TASK, subtasks=subtasks), one.holds[1:], one.success[1:])
    assert score.pay.tolist() == pytest.approx([0.3, 0.3, 0.3])


def test_unpaid_subtasks_are_counted_apart():
    found = measure(TASK, [episode([A, A, D, C]), demo(4, 6, 7)])
    assert found[0].times == (4,) and found[0].unpaid == 1


def test_a_subtask_without_any_credit_is_an_error():
    with pytest.raises(ValueError, match=r"no credit for drink_in, close in any of 2 demonstrations"):
        measure(TASK, [episode([N, A]), episode([N, N, A])])


def test_other_conditions_are_refused_and_another_order_is_not():
    changed = (dataclasses.replace(TASK.subtasks[0], condition="near(apple, box)"), *TASK.subtasks[1:])
    with pytest.raises(ValueError, match="record them again"):
        measure(dataclasses.replace(TASK, subtasks=changed), [demo(4, 6, 7)])
    chain = (TASK.subtasks[0], dataclasses.replace(TASK.subtasks[1], prerequisites=(0,)), TASK.subtasks[2])
    found = measure(dataclasses.replace(TASK, subtasks=chain), [demo(4, 6, 7)])
    assert [m.times for m in found] == [(4,), (2,), (1,)]


def test_nothing_to_measure():
    with pytest.raises(ValueError, match="no demonstrations"):
        measure(TASK, [])


def test_table():
    lines = table(measure(TASK, [demo(4, 6, 7), demo(8, 9, 14)]), TASK).splitlines()
    assert lines[0].split() == ["subtask", "mean", "median", "min", "max", "count", "unpaid", "in", "file"]
    assert lines[1].split() == ["apple_in", "6.0", "6", "4", "8", "2", "0", "4"]
    assert len({len(line) for line in lines}) == 1
