"""What the README shows is what the repository holds."""

import re
import shlex
from pathlib import Path

import torch

import structrl
from structrl.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_task_shown_is_the_task_shipped():
    (shown,) = (block for block in blocks() if block.startswith("# tasks/tabletop/pack_lunch.task"))
    mine, shipped = structrl.parse_task(shown), structrl.load_task("tabletop/pack_lunch")
    assert [(s.label, s.program, s.prerequisites, s.duration) for s in mine.subtasks] == [
        (s.label, s.program, s.prerequisites, s.duration) for s in shipped.subtasks
    ]
    for field in ("name", "atoms", "command", "sim", "sim_args", "horizon", "success"):
        assert getattr(mine, field) == getattr(shipped, field)


def test_the_python_example_runs():
    (example,) = blocks("python")
    holds = torch.zeros(120, 3, dtype=torch.bool)
    holds[60:, 0] = holds[70:, 1] = holds[110:, 2] = True
    names: dict = {}
    exec(example.replace("holds = ...", "holds = given"), {"given": holds}, names)
    score = names["score"]
    # T = 61 of T_d 61; 10 of 58; 40 of 44; success once
    torch.testing.assert_close(score.rewards.sum().item(), 0.3 + 0.6 / (1 + 10 / 58) + 0.6 / (1 + 40 / 44) + 2.0)
    assert score.credits.nonzero().tolist() == [[60, 0], [70, 1], [110, 2]]


def test_commands_and_files_that_are_named_exist():
    lines = [line for block in blocks() for line in block.splitlines() if line.startswith("structrl ")]
    assert len(lines) > 8
    assert {shlex.split(line, comments=True)[1] for line in lines} <= COMMANDS.keys()
    for path in re.findall(r"[`(]((?:configs|tasks|grammar|docs|structrl)/[\w/.]+\.\w+)[`)]", README):
        assert (ROOT / path).is_file(), path
