"""results.csv: every finished run's evaluations, kept when the folders they came from are gone."""

import csv
import statistics
from collections import defaultdict
from pathlib import Path

import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.study.arms import ARMS
from benchmarks.study.statistics import Curve

COLUMNS = ["arm", "block", "metric", "env_steps", "value"]
TIMES = ("time/simulate", "time/observe", "time/infer", "time/update")
TRAINED = "charts/success"  # of the training episodes, so of the noisy policy
TRAINING = (TRAINED, "losses/explained_variance", "policy/ode_shift", "losses/approx_kl")
STRETCH = 10  # iterations that one point of these is the mean of
OUT_OF_ORDER = "out_of_order"  # subtasks done before their turn, per episode
Results = dict[tuple[str, int], dict[str, Curve]]  # (arm, block) -> metric -> points


def load(file: Path) -> Results:
    """What a results.csv holds; nothing if there is none.

    Raises:
        ValueError: another table, or a row that is none of its.
    """
    found: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    if file.exists():
        with open(file, newline="") as lines:
            rows = csv.DictReader(lines)
            if rows.fieldnames != COLUMNS:
                raise ValueError(f"{file} has the columns {rows.fieldnames}, not {COLUMNS}")
            for row in rows:
                run = found[row["arm"], int(row["block"])]
                run[row["metric"]].append((float(row["env_steps"]), float(row["value"])))
    return {key: dict(metrics) for key, metrics in found.items()}


def save(file: Path, results: Results) -> None:
    """Write a results.csv, in the order of arms and blocks."""
    order = {arm: i for i, arm in enumerate(ARMS)}
    with open(file, "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        for arm, block in sorted(results, key=lambda key: (order[key[0]], key[1])):
            for metric, points in results[arm, block].items():
                writer.writerows([arm, block, metric, int(x), f"{y:.6g}"] for x, y in points)


def runs_of(folder: Path, task: str) -> tuple[Results, list[str]]:
    """The finished runs of the study's blocks under `folder`, and the names of those that are not finished.

    Of each: success, return and subtask rates of its evaluations, what says whether training goes well (means over
    stretches of iterations), and seconds per iteration (one point, the mean).
    """
    found, unfinished = {}, []
    for run in sorted(folder.glob("block_*/*/tensorboard")):
        arm, block = run.parent.name, int(run.parent.parent.name.removeprefix("block_"))
        if arm not in ARMS:
            continue
        config = yaml.safe_load(run.parent.with_suffix(".yaml").read_text())
        last = f"checkpoints/epoch-{config['trainer']['max_epochs'] - 1:05d}.ckpt"
        if (run.parent / last).exists():
            found[arm, block] = _read(run, task)
        else:
            unfinished.append(f"{arm} of block {block}")
    return found, unfinished


def _read(folder: Path, task: str) -> dict[str, Curve]:
    log = EventAccumulator(str(folder))
    log.Reload()
    prefix = f"evaluate/task/{task}/"
    tags = {f"{prefix}{name}": name for name in ("success", "return")}
    tags |= {
        tag: tag.removeprefix(prefix)
        for tag in log.Tags()["scalars"]
        if tag.startswith(f"{prefix}subtask/") and tag.endswith("/rate")
    }
    tags["evaluate/reward/audit/out_of_order"] = OUT_OF_ORDER
    there = log.Tags()["scalars"]
    # an iteration that was repeated after a kill wrote its point again
    curves: dict[str, Curve] = {
        name: sorted({int(e.step): e.value for e in log.Scalars(tag)}.items())
        for tag, name in tags.items()
        if tag in there
    }
    for tag in TRAINING:
        if tag in there:
            events = log.Scalars(tag)
            stretches = [events[i : i + STRETCH] for i in range(0, len(events), STRETCH)]
            curves[tag] = [(stretch[-1].step, statistics.mean(e.value for e in stretch)) for stretch in stretches]
    for tag in TIMES:
        if tag in there:
            events = log.Scalars(tag)
            curves[tag] = [(events[-1].step, statistics.mean(e.value for e in events))]
    return curves
