"""The examples of the manual and the shipped tasks: they check, and they are laid out as the formatter would."""

import re

import pytest

from structrl import resources
from structrl.lang.check import check
from structrl.lang.diagnostics import CODES
from structrl.lang.format import format_source
from structrl.lang.parser import parse
from structrl.task import load_task, shipped_tasks
from tests.lang.toy import VOCABULARY

MANUAL = (resources.folder("grammar") / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```task\n(.*?)```", MANUAL, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples(text: str):
    assert check(parse(text), "<manual>", VOCABULARY if "sim " in text else None).diagnostics == []
    format_source(text)


def test_the_manual_lists_every_code():
    listed = dict(re.findall(r"^\| (T[0-9]+) \| (.*) \|$", MANUAL, re.MULTILINE))
    assert listed == CODES


@pytest.mark.parametrize("name", shipped_tasks())
def test_shipped_tasks(name: str):
    task = load_task(name)
    assert check(parse(task.source), name).diagnostics == []
    assert format_source(task.source) == task.source
    assert all(each.duration for each in task.subtasks) and task.horizon
