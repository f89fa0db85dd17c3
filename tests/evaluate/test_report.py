import copy
import json

import pytest
import torch
from tensordict import TensorDict

from structrl.evaluate.report import FORMAT, compare_text, rate, rate_text, read_report, summarise, table_text
from structrl.plan import stack_plans
from tests.toy import toy_task

PLANS = stack_plans([toy_task(2, name="two"), toy_task(3, name="three")])


def table():
    """Five episodes, three of task `two`."""
    nan, never = float("nan"), -1
    return TensorDict(
        {
            "task": torch.tensor([0, 1, 0, 1, 0]),
            "success": torch.tensor([True, False, False, False, True]),
            "failed": torch.tensor([False, True, False, False, False]),
            "return": torch.tensor([3.0, 0.1, 0.0, 0.3, 2.0]),
            "length": torch.tensor([8, 20, 20, 20, 10]),
            "complete": torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 1, 0]]).bool(),
            "unpaid": torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]).bool(),
            "undone": torch.tensor([[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]).bool(),
            "credited_at": torch.tensor([[3, 8, -1], [-1, -1, -1], [-1, -1, -1], [5, 6, -1], [4, 10, never]]),
            "interval": torch.full((5, 3), nan),
        },
        [5],
    )


def test_counts_by_hand():
    found = summarise(table(), PLANS)
    assert list(found) == ["two", "three"]
    two, three = found["two"], found["three"]
    assert two["success"] == rate(2, 3) and three["success"] == rate(0, 2)
    assert (two["failed"], three["failed"]) == (0, 1)
    assert two["mean_length"] == pytest.approx(38 / 3) and two["mean_return"] == pytest.approx(5 / 3)
    assert list(two["subtasks"]) == ["s0", "s1"], "padding is no subtask"
    assert two["subtasks"]["s0"] == {"completed": rate(2, 3), "unpaid": 0, "undone": 0, "median_step": 3.5}
    assert three["subtasks"]["s0"] == {"completed": rate(2, 2), "unpaid": 1, "undone": 1, "median_step": 5}
    assert three["subtasks"]["s2"] == {"completed": rate(0, 2), "unpaid": 0, "undone": 0, "median_step": None}


def test_table_lines_up():
    lines = table_text(summarise(table(), PLANS)).splitlines()
    assert lines[0] == "two: mean return 1.67, mean length 13 steps"
    assert lines[2].split() == ["success", "2/3", "66.7", "%", "[", "20.8,", "93.9]"]
    assert lines[3].split()[-3:] == ["3.5", "0", "0"]
    assert len({line.index("%") for line in lines if "% [" in line}) == 1
    assert lines[-1] == "  1 episodes ended by failure"


def report(k, n=200, seed=0, **env):
    task = {"success": rate(k, n), "subtasks": {"a": {"completed": rate(min(k + 10, n), n)}}}
    return {"seed": seed, "episodes": n, "config": {"env": env}, "tasks": {"pack": task}}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (84, 143, "higher, intervals do not overlap"),
        (143, 84, "lower, intervals do not overlap"),
        (84, 90, "intervals overlap"),
    ],
)
def test_before_and_after(before, after, said):
    text = compare_text(report(before), report(after)).splitlines()
    row = next(line for line in text if line.lstrip().startswith("success"))
    assert rate_text(rate(before, 200)) in row and rate_text(rate(after, 200)) in row
    assert row.index(rate_text(rate(before, 200))) < row.index(rate_text(rate(after, 200)))
    assert row.endswith("  " + said)
    assert "the same starts in both" in text


def test_differences_of_the_two_evaluations_are_said():
    text = compare_text(report(1, num_envs=4, chunk=8), report(2, seed=1, num_envs=9, chunk=8, sim={"shift": 1}))
    assert "other starts in the two (seed or episodes differ)" in text
    assert text.endswith("note: the environments differ in env.sim")


def test_nothing_shared():
    other = report(1)
    other["tasks"] = {"open": other["tasks"]["pack"]}
    with pytest.raises(ValueError, match="nothing to compare: the earlier result is of open, this one of pack"):
        compare_text(other, report(1))


def test_reading_results(tmp_path):
    with pytest.raises(FileNotFoundError, match="--output"):
        read_report(tmp_path / "none.json")
    for content in (b"{", b"[]", b'{"format": "x"}', b"\x89HDF\xff"):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(ValueError, match="not a result of structrl evaluate"):
            read_report(tmp_path / "bad.json")


def test_an_edited_result_is_an_error_that_says_so(tmp_path):
    whole = report(84) | {"format": FORMAT}
    edited = copy.deepcopy(whole)
    del edited["tasks"]["pack"]["success"]["low"]
    (tmp_path / "a.json").write_text(json.dumps(edited))
    with pytest.raises(ValueError, match="was changed since structrl evaluate wrote it: KeyError"):
        read_report(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps(whole))
    assert read_report(tmp_path / "b.json") == whole
