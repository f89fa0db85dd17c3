"""The examples of the manual and the shipped tasks: they check, and they are laid out as the formatter would."""

import dataclasses
import re
from pathlib import Path

import pytest

from structrl import resources
from structrl.lang.check import check
from structrl.lang.diagnostics import CODES
from structrl.lang.format import format_source
from structrl.lang.order import outline
from structrl.lang.parser import parse
from structrl.lang.spec import TaskSpec
from structrl.task import load_task, parse_task, shipped_tasks
from tests.lang.kitchen import KITCHEN
from tests.lang.toy import VOCABULARY

MANUAL = (resources.folder("grammar") / "README.md").read_text(encoding="utf-8")
LONG = re.findall(r"```task\n(.*?)```", MANUAL.split("## Eight long tasks")[1], re.DOTALL)
EXAMPLES = re.findall(r"```task\n(.*?)```", MANUAL, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples(text: str):
    found = check(parse(text), "<manual>", VOCABULARY if "sim " in text else None).diagnostics
    assert [each.code for each in found] == ([] if "sim " in text else ["T017"])
    format_source(text)


# The order of each long task, top to bottom.
ORDERS = [
    "open_drawer v +-add_spoon_drawer +-add_fork_drawer v close_drawer",
    "+-add_bread_toaster | v | press_lever | v | toasted_bread +-place_plate_table v place_bread_plate",
    "+-add_nut_1_bowl +-add_nut_2_bowl +-add_nut_3_bowl +-add_nut_4_bowl +-add_nut_5_bowl +-add_nut_6_bowl",
    "turn_on_tap v +-reach_apple | v | washed_apple | v | add_apple_bowl "
    "+-reach_pear v washed_pear v add_pear_bowl v turn_off_tap",
    "grasp_cloth v clean_counter v put_back",
    "held_left v meet v handed_over v inserted_peg_socket",
    "place_mug_machine v power v brew v filled_mug",
    "+-place_plate_1_seat_1 | v | +-left_of_fork_1_plate_1 | +-right_of_knife_1_plate_1 "
    "+-place_plate_2_seat_2 v +-left_of_fork_2_plate_2 +-right_of_knife_2_plate_2 v place_candle_table",
]


def bare(task: TaskSpec) -> TaskSpec:
    """Without what the layout of the file changes."""
    return dataclasses.replace(
        task, source="", subtasks=tuple(dataclasses.replace(each, line=0) for each in task.subtasks)
    )


@pytest.mark.parametrize(("text", "order"), list(zip(LONG, ORDERS, strict=True)), ids=range(len(ORDERS)))
def test_long_tasks(text: str, order: str):
    """They check without a word, in a vocabulary that has theirs, and mean the order that the manual says."""
    checked = check(parse(text), "<manual>", KITCHEN)
    assert checked.diagnostics == [] and checked.task is not None
    assert " ".join(" ".join(outline(checked.task)).split()).replace("+- ", "+-") == order
    again = parse_task(format_source(text), "<manual>", KITCHEN)
    assert bare(again) == bare(checked.task)


def test_the_drawing_of_the_last_long_task():
    (drawing,) = re.findall(r"```text\n(.*?)```", MANUAL, re.DOTALL)
    assert "\n".join(outline(parse_task(LONG[-1]))) == drawing.rstrip()


def test_the_manual_names_the_warnings():
    golden = [file.read_text(encoding="utf-8") for file in (Path(__file__).parents[1] / "golden/errors").glob("*.txt")]
    warnings = set(re.findall(r"warning\[(T[0-9]+)\]", "".join(golden)))
    (sentence,) = re.findall(r"^(T025.*) are warnings", MANUAL, re.MULTILINE)
    assert set(re.findall("T[0-9]+", sentence)) == warnings


def test_the_manual_lists_every_code():
    listed = dict(re.findall(r"^\| (T[0-9]+) \| (.*) \|$", MANUAL, re.MULTILINE))
    assert listed == CODES


@pytest.mark.parametrize("name", shipped_tasks())
def test_shipped_tasks(name: str):
    task = load_task(name)
    assert check(parse(task.source), name).diagnostics == []
    assert format_source(task.source) == task.source
    assert all(each.duration for each in task.subtasks) and task.horizon
