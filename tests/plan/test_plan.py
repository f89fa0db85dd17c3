import dataclasses

import pytest
import torch

import structrl
from structrl.lang.spec import SubtaskSpec, TaskSpec
from structrl.plan import Plan, compile_plan, stack_plans


def spec(name="lunch", **changes):
    """group < a; b @ 58 worth 2 > then newly c @ 44.5."""
    return dataclasses.replace(
        TaskSpec(
            name=name,
            atoms=(),
            subtasks=(
                SubtaskSpec("a", "in(x, box)", (("atom", 0),)),
                SubtaskSpec("b", "in(y, box)", (("atom", 1),), duration=58, worth=2.0),
                SubtaskSpec("c", "pressed(z)", (("atom", 2),), (0, 1), duration=44.5, newly=True, pulse=True),
            ),
            horizon=240,
            path=f"{name}.task",
        ),
        **changes,
    )


def test_compile_plan_from_spec():
    plan = compile_plan(spec())
    assert plan.names == ("a", "b", "c") and plan.task == "lunch" and plan.path == "lunch.task"
    assert plan.prerequisites.tolist() == [[False] * 3, [False] * 3, [True, True, False]]
    assert plan.durations.dtype == torch.float64
    assert plan.durations[0].isnan() and plan.durations[1:].tolist() == [58, 44.5]
    assert plan.worth.tolist() == [1, 2, 1]
    assert plan.newly.tolist() == [False, False, True] == plan.pulse.tolist()


def test_stack_pads_without_mixing():
    other = spec("solo", subtasks=(SubtaskSpec("d", "on(x)", (("atom", 0),), duration=7.0),), horizon=None)
    stacked = stack_plans([other, spec()])
    assert stacked.task_names == ("solo", "lunch") and stacked.names == (("d",), ("a", "b", "c"))
    assert stacked.valid.tolist() == [[True, False, False], [True] * 3]
    assert stacked.horizon.tolist() == [0, 240]
    assert not stacked.prerequisites[0].any()
    plan = Plan.from_spec(spec())
    for name in ("prerequisites", "durations", "worth", "newly", "pulse"):
        torch.testing.assert_close(getattr(stacked, name)[1], getattr(plan, name), equal_nan=True)
    rows = stacked.rows(torch.tensor([1, 0, 1]))
    assert rows.prerequisites.shape == (3, 3, 3)
    assert rows.valid.sum(-1).tolist() == [3, 1, 3]
    assert torch.equal(rows.worth[0], rows.worth[2])
    assert stacked.to("meta").durations.device.type == "meta"


@pytest.mark.parametrize(
    ("prerequisites", "message"),
    [
        ([(), (0,), (1,)], "transitively closed"),
        ([(1,), (0,), ()], "transitively closed"),
        ([(0,), (), ()], "'a' is its own prerequisite"),
        ([(), (5,), ()], "a prerequisite of 'b' is not a subtask"),
    ],
)
def test_broken_order_is_rejected(prerequisites, message):
    subtasks = [dataclasses.replace(s, prerequisites=p) for s, p in zip(spec().subtasks, prerequisites, strict=True)]
    with pytest.raises(ValueError, match=rf"lunch\.task: .*{message}"):
        compile_plan(spec(subtasks=tuple(subtasks)))


def test_empty_and_repeated_are_rejected():
    with pytest.raises(ValueError, match="no subtasks"):
        compile_plan(spec(subtasks=()))
    with pytest.raises(ValueError, match="at least one task"):
        stack_plans([])
    with pytest.raises(ValueError, match="repeated: lunch"):
        stack_plans([spec(), spec()])


EXAMPLE = "group < add(apple, box); add(drink, box) > then close(box)"


def test_compile_plan_from_text_path_and_name(tmp_path):
    plan = structrl.compile_plan(EXAMPLE)
    assert plan.names == ("add_apple_box", "add_drink_box", "close_box")
    assert plan.prerequisites.tolist() == [[False] * 3, [False] * 3, [True, True, False]]
    assert plan.durations.isnan().all()
    file = tmp_path / "lunch.task"
    file.write_text(EXAMPLE.replace("close(box)", "close(box) @ 44"))
    for path in (file, str(file)):
        plan = structrl.compile_plan(path)
        assert plan.path == str(file) and plan.durations[2] == 44
    with pytest.raises(FileNotFoundError):
        structrl.compile_plan("no/such_task")
    with pytest.raises(ValueError, match=r"error\["):
        structrl.compile_plan("group < add(apple, box) then close(box)")
