"""docs/training.md names every option, and every vector with a test that is there."""

import dataclasses
import re
from pathlib import Path

import pytest

from structrl.policies.flow import FlowOptions
from structrl.rewards import RewardOptions
from structrl.rl.options import GRPOOptions, PPOOptions

ROOT = Path(__file__).resolve().parents[2]
MANUAL = (ROOT / "docs/training.md").read_text()
NAMED = set(re.findall(r"`(?:\w+\.)?(\w+)[`:]", MANUAL))


@pytest.mark.parametrize("options", [FlowOptions, PPOOptions, GRPOOptions, RewardOptions])
def test_every_option_is_named(options):
    missing = [field.name for field in dataclasses.fields(options) if field.name not in NAMED]
    assert not missing


def test_every_vector_has_its_test():
    rows = [line.split("|")[1:4] for line in MANUAL.splitlines() if re.match(r"\| V\d", line)]
    numbers = [int(n) for vectors, _, _ in rows for n in re.findall(r"V(\d+)", vectors)]
    assert numbers == list(range(1, 14))
    for vectors, _, file in rows:
        source = (ROOT / file.strip().strip("`")).read_text().lower()
        for number in re.findall(r"v\d+", vectors.lower()):
            assert re.search(rf"def test_\w*{number}(?!\d)", source), (number, file)
