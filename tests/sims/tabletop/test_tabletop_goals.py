"""What the expert pursues, from a task's success and plan."""

import pytest

from structrl.sims.tabletop.goals import goals
from structrl.task import load_task, parse_task

HEAD = 'task t\nsim tabletop(scene="{}")\nhorizon 9 steps\n'


def pursued(text: str, scene: str = "kitchen") -> list[str]:
    return [str(atom) for atom in goals(parse_task(HEAD.format(scene) + text))]


def test_goals_come_in_the_order_of_the_plan():
    text = "success on(pot, burner) and was_pressed(timer) and in(egg, oven)\nplan open(oven) then add(egg, oven) then "
    assert pursued(text + "press(timer) then place(pot, burner)") == [
        "in(egg_1, oven_1)",
        "was_pressed(timer_1)",
        "on(pot_1, burner_1)",
    ]


def test_of_alternatives_the_first_and_nothing_negative():
    blocks = "on(red_block, tray), on(green_block, tray), on(blue_block, tray)"
    text = f"success (at least 2 of ({blocks})) and not grasped(red_block)\nplan at least 2 of ({blocks})"
    assert pursued(text, "blocks") == ["on(red_block_1, tray_1)", "on(green_block_1, tray_1)"]
    text = "success (on(blue_block, tray) or on(red_block, tray)) for 5 steps\nplan place(blue_block, tray)"
    assert pursued(text, "blocks") == ["on(blue_block_1, tray_1)"]


@pytest.mark.parametrize("what", ["near(egg, pot)", "lifted(egg)", "on(egg, table)"])
def test_what_the_expert_cannot_do_is_said(what):
    with pytest.raises(ValueError, match=r"no skill for .*egg_1.*; it has: in, on, open"):
        pursued(f"success {what}\nplan {what}")


def test_the_shipped_order_of_dinner():
    assert [str(atom) for atom in goals(load_task("tabletop/cook_dinner"))] == [
        *("in(bread_1, oven_1)", "in(egg_1, oven_1)", "closed(oven_1)"),
        *("on(pot_1, burner_1)", "turned_on(stove_1)", "was_pressed(timer_1)"),
    ]
