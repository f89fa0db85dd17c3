"""Statistics of the study, and a report of hand-made runs."""

import dataclasses
import math
import random

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from benchmarks.study.__main__ import report
from benchmarks.study.arms import ARMS, COMPARISONS, MAIN, Scale
from benchmarks.study.results import load
from benchmarks.study.statistics import area, sign_flip, steps_to, t_interval
from benchmarks.study.tuning import ITERATIONS, TRIALS, save_trials, trial_scale

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


def write_run(folder, values, iterations=2, finished=True):
    """A run as `structrl fit` leaves it behind, with `values` of success at 0, 1000, 2000, ... steps."""
    (folder / "checkpoints").mkdir(parents=True)
    folder.with_suffix(".yaml").write_text(f"trainer: {{max_epochs: {iterations}}}")
    if finished:
        (folder / f"checkpoints/epoch-{iterations - 1:05d}.ckpt").touch()
    with SummaryWriter(str(folder / "tensorboard")) as log:
        for i, value in enumerate(values):
            log.add_scalar("evaluate/task/t/success", value, 1000 * i)
            log.add_scalar("evaluate/task/t/subtask/pick/rate", value, 1000 * i)
            log.add_scalar("evaluate/reward/audit/out_of_order", 0.5, 1000 * i)
            log.add_scalar("charts/success", value, 1000 * i)
            for name in ("simulate", "observe", "infer", "update"):
                log.add_scalar(f"time/{name}", 2.0, 1000 * i)


def test_report_of_runs(tmp_path):
    """Two arms, three blocks: differences are taken within blocks."""
    for block, base in enumerate((0.0, 0.2, 0.4)):
        for arm, gain in (("sparse-seeing", 0.0), ("structrl-seeing", 0.1)):
            later = base + gain + 0.01 * block
            write_run(tmp_path / f"runs/block_{block}/{arm}", [base, later, later])
    write_run(tmp_path / "runs/block_1000/sparse-seeing", [0.9, 0.9, 0.9])
    write_run(tmp_path / "runs/block_0/sparse-blind", [0.9, 0.9], finished=False)
    text = report(tmp_path / "runs", "t", tmp_path / "out")
    assert "| sparse-seeing | 3 (0, 1, 2) |" in text and "| structrl-seeing | 3 (0, 1, 2) |" in text
    assert "Not finished, not in here: sparse-blind of block 0." in text and "| sparse-blind" not in text
    row = next(line for line in text.splitlines() if line.startswith("| structrl-seeing - sparse-seeing"))
    assert row.split("|")[2:4] == [" 3 ", " +0.0750 "]
    assert row.split("|")[5] == " 0.2500 "
    assert "2/3" in next(line for line in text.splitlines() if line.startswith("| sparse-seeing"))
    assert "| structrl-seeing / sparse-seeing | 0 | 0.0750 / 0.0000 | > 2000 / > 2000 | censored |" in text
    assert "| structrl-seeing | 2.00 | 2.00 | 2.00 | 2.00 |" in text

    # another session: other folders, a run again, and one more block
    again = tmp_path / "later"
    write_run(again / "block_0/sparse-seeing", [0.0, 0.5, 0.5])
    write_run(again / "block_3/sparse-seeing", [0.0, 0.0, 0.0])
    assert report(again, "t", tmp_path / "out").count("| sparse-seeing | 4 (0, 1, 2, 3) |") == 1
    results = load(tmp_path / "out/results.csv")
    assert len(results) == 7 and results["sparse-seeing", 0]["success"] == [(0, 0), (1000, 0.5), (2000, 0.5)]
    assert results["structrl-seeing", 2]["success"][-1] == (2000, pytest.approx(0.52))


def test_a_table_that_is_not_the_studys_is_refused(tmp_path):
    (tmp_path / "results.csv").write_text("arm,value\nsparse-seeing,1\n")
    with pytest.raises(ValueError, match="columns"):
        load(tmp_path / "results.csv")


def test_arms():
    assert set(MAIN) <= set(ARMS) and {arm for pair in COMPARISONS for arm in pair} <= set(ARMS)
    for arm in ARMS.values():
        from structrl.rewards import RewardOptions

        RewardOptions(**arm.reward).resolved()


def test_trials_change_what_they_say_and_are_reported(tmp_path):
    assert trial_scale(Scale(), "chosen") == dataclasses.replace(Scale(), iterations=ITERATIONS)
    for trial, changed in TRIALS.items():
        used, chosen = (dataclasses.asdict(trial_scale(Scale(), name)) for name in (trial, "chosen"))
        assert {key for key in used if used[key] != chosen[key]} == set(changed)
        folder = tmp_path / "tuning" / trial / "block_1000"
        write_run(folder / "structrl-seeing", [0.0, 0.1, 0.1])
        write_run(folder / "sparse-seeing", [0.0, 0.0, 0.2], finished=trial != "noise_0.5")
    rows = save_trials(tmp_path, "t", Scale(), tmp_path / "out/tuning.csv").splitlines()
    assert len(rows) == 1 + 2 * len(TRIALS) - 1  # one is not finished
    assert rows[1:3] == [
        "sparse-seeing,6e-05,1.0,0.0500,0.2000,0.0667",
        "structrl-seeing,6e-05,1.0,0.0750,0.1000,0.0667",
    ]
    assert rows[-1].startswith("structrl-seeing,6e-05,0.5,")
