"""Statistics of the study, and a report of hand-made runs."""

import math
import random

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from benchmarks.study.__main__ import report
from benchmarks.study.arms import ARMS, COMPARISONS, MAIN
from benchmarks.study.statistics import area, sign_flip, steps_to, t_interval

CURVE = [(0, 0.0), (100, 0.2), (300, 0.4)]


def test_area_is_mean_success_up_to_a_cut():
    assert area(CURVE, 300) == pytest.approx((0.1 * 100 + 0.3 * 200) / 300)
    assert area(CURVE, 200) == pytest.approx((0.1 * 100 + 0.25 * 100) / 200)
    assert area([(50, 0.3), (60, 0.3)], 60) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="ends at 300"):
        area(CURVE, 301)


def test_steps_to_a_level():
    assert steps_to(CURVE, 0.1) == 50
    assert steps_to(CURVE, 0.3) == pytest.approx(200)
    assert steps_to(CURVE, 0.5) is None
    assert steps_to([(7, 0.9), (8, 0.1)], 0.2) == 7


def test_sign_flip_by_hand_and_under_the_null():
    assert sign_flip([1.0, 2.0, 3.0]) == 2 / 8  # only all + and all - are as far out
    assert sign_flip([1.0, -1.0]) == 1.0
    assert sign_flip([0.5] * 8) == 2 / 256
    rng = random.Random(0)
    p = [sign_flip([rng.gauss(0, 1) for _ in range(6)]) for _ in range(400)]
    assert sum(x <= 0.1 for x in p) / 400 == pytest.approx(0.1, abs=0.05)


def test_t_interval_covers():
    assert t_interval([1.0, 3.0]) == pytest.approx((2 - 12.706, 2 + 12.706), rel=1e-3)
    g = torch.Generator().manual_seed(1)
    draws = torch.randn(2000, 8, generator=g).tolist()
    covered = sum(low <= 0 <= high for low, high in map(t_interval, draws)) / 2000
    assert covered == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 2000))


def test_report_of_runs(tmp_path):
    """Two arms, three blocks: differences are taken within blocks."""
    for block, base in enumerate((0.0, 0.2, 0.4)):
        for arm, gain in (("sparse-seeing", 0.0), ("structrl-seeing", 0.1)):
            with SummaryWriter(str(tmp_path / f"runs/block_{block}/{arm}/tensorboard")) as log:
                for step in (0, 1000, 2000):
                    log.add_scalar("evaluate/task/t/success", base + (gain + 0.01 * block) * (step > 0), step)
    text = report(tmp_path / "runs", "t", tmp_path / "out")
    assert "| sparse-seeing | 3 |" in text and "| structrl-seeing | 3 |" in text
    row = next(line for line in text.splitlines() if line.startswith("| structrl-seeing - sparse-seeing"))
    assert row.split("|")[2:4] == [" 3 ", " +0.0750 "]
    assert row.split("|")[5] == " 0.2500 "
    assert "2/3" in next(line for line in text.splitlines() if line.startswith("| sparse-seeing"))
    lines = (tmp_path / "out/results.csv").read_text().splitlines()
    assert lines[0] == "arm,block,metric,env_steps,value" and len(lines) == 1 + 2 * 3 * 3


def test_arms():
    assert set(MAIN) <= set(ARMS) and {arm for pair in COMPARISONS for arm in pair} <= set(ARMS)
    for arm in ARMS.values():
        from structrl.rewards import RewardOptions

        RewardOptions(**arm.reward).resolved()
