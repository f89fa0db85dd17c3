"""Trials of learning rate and noise on the discarded block, the same ones for every arm that is asked for."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

from benchmarks.study.arms import Scale
from benchmarks.study.results import TRAINED, Results, runs_of
from benchmarks.study.statistics import area

TRIALS: dict[str, dict[str, Any]] = {
    "chosen": {},
    "lr_2e-5": {"learning_rate": 2e-5},
    "lr_1.2e-4": {"learning_rate": 1.2e-4},
    "noise_0.5": {"noise": 0.5},
}
ITERATIONS = 20
COLUMNS = ["arm", "learning_rate", "noise", "area", "final_success", "training_success"]


def trial_scale(scale: Scale, trial: str) -> Scale:
    """The study's settings but for what the trial changes, and its length."""
    return dataclasses.replace(scale, iterations=min(ITERATIONS, scale.iterations), **TRIALS[trial])


def save_trials(runs: Path, task: str, scale: Scale, file: Path) -> str:
    """Write tuning.csv of the finished trials under `runs`/tuning and return its text.

    `area` and `final_success` are of the evaluations, `training_success` the mean over the last stretch of iterations:
    more episodes, but of the noisy policy and of a policy that still changes.
    """
    trials: dict[str, Results] = {trial: runs_of(runs / "tuning" / trial, task)[0] for trial in TRIALS}
    ends = [run["success"][-1][0] for found in trials.values() for run in found.values()]
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        for trial, found in trials.items():
            used = trial_scale(scale, trial)
            for (arm, _), run in sorted(found.items()):
                measures = area(run["success"], min(ends)), run["success"][-1][1], run[TRAINED][-1][1]
                writer.writerow([arm, used.learning_rate, used.noise, *(f"{x:.4f}" for x in measures)])
    return file.read_text()
