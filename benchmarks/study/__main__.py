"""Runs the study of docs/study/protocol.md, or the part of it that is asked for; what is finished is not run again.

    python -m benchmarks.study TASK --shifts 0.014 0.018 0.022     # start success of the discarded block
    python -m benchmarks.study TASK --tune --arms sparse-seeing structrl-seeing    # trials on the discarded block
    python -m benchmarks.study TASK --blocks 0 1 2 --arms main     # runs; interrupted, the same command continues
    python -m benchmarks.study TASK --report                       # results.csv and summary.md of what is finished

Every step is a `structrl` command of its own in a folder under --runs; a run that was killed is resumed.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.study.arms import ARMS, MAIN, TOY, Scale, arm_config, env_config, sft_config
from benchmarks.study.results import load, runs_of, save
from benchmarks.study.summary import summarise
from benchmarks.study.tuning import TRIALS, save_trials, trial_scale

DISCARDED = 1000  # number of the block on which shift and hyper-parameters are chosen


def structrl(*arguments: str) -> None:
    """One command of the tool; ends the study if it fails."""
    print("$ structrl", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "structrl.cli", *arguments], check=True)


def fit(config: dict[str, Any]) -> Path:
    """Run a config to its end and return its last checkpoint; at once if it is finished.

    Raises:
        RuntimeError: the run was stopped before its end.
    """
    folder = Path(config["trainer"]["default_root_dir"])
    last = folder / "checkpoints" / f"epoch-{config['trainer']['max_epochs'] - 1:05d}.ckpt"
    if not last.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.with_suffix(".yaml")
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        structrl("fit", "--config", str(path), *(["--resume"] if (folder / "checkpoints/last.ckpt").exists() else []))
    if not last.exists():
        raise RuntimeError(f"{folder} was stopped before its end; the same command continues")
    return last


def warm_start(task: str, scale: Scale, block: int, folder: Path) -> Path:
    """Demonstrations and supervised policy of a block."""
    demos = folder / "demos.h5"
    if not demos.exists():
        structrl(
            "demos", task, "--episodes", str(scale.demos), "--slop", str(scale.slop), "--seed", str(block), "--out",
            str(demos),
        )  # fmt: skip
    return fit(sft_config(task, scale, block, str(folder / "sft"), str(demos)))


def run_arm(task: str, scale: Scale, block: int, name: str, runs: Path) -> None:
    """One arm of a block, from the block's warm start."""
    folder = runs / f"block_{block}"
    weights = warm_start(task, scale, block, folder)
    fit(arm_config(task, scale, ARMS[name], block, str(folder / name), str(weights)))


def choose_shift(task: str, scale: Scale, shifts: list[float], episodes: int, runs: Path) -> None:
    """Success of the discarded block's warm start in worlds that are off by each of `shifts`."""
    folder = runs / f"block_{DISCARDED}"
    weights = warm_start(task, scale, DISCARDED, folder)
    for shift in shifts:
        world = dataclasses.replace(scale, shift=shift)
        config = folder / f"shift_{shift:g}.yaml"
        model = sft_config(task, world, DISCARDED, "", "")["model"]
        env = {"init_args": {"env": env_config(task, world, {"preset": "structrl"})}}
        config.write_text(yaml.safe_dump({"model": model, "data": env}))
        structrl(
            "evaluate", "--checkpoint", str(weights), "--env-from", str(config), "--episodes", str(episodes),
            "--output", str(config.with_suffix(".json")),
        )  # fmt: skip


def tune(task: str, scale: Scale, arms: list[str], runs: Path) -> None:
    """The trials of `arms`, from the discarded block's warm start."""
    weights = warm_start(task, scale, DISCARDED, runs / f"block_{DISCARDED}")
    for trial in TRIALS:
        for name in arms:
            folder = runs / "tuning" / trial / f"block_{DISCARDED}" / name
            fit(arm_config(task, trial_scale(scale, trial), ARMS[name], DISCARDED, str(folder), str(weights)))


def report(runs: Path, task: str, out: Path) -> str:
    """Add what is finished under `runs` to results.csv, in place of older runs of the same blocks; write summary.md."""
    finished, unfinished = runs_of(runs, task)
    results = load(out / "results.csv") | {key: run for key, run in finished.items() if key[1] != DISCARDED}
    if not results:
        return f"nothing is finished under {runs}\n"
    out.mkdir(parents=True, exist_ok=True)
    save(out / "results.csv", results)
    text = summarise(results, unfinished)
    (out / "summary.md").write_text(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", help="a .task file with durations, or the name of one that comes with structrl")
    parser.add_argument("--blocks", type=int, nargs="*", default=[], help="numbers, also the seeds")
    parser.add_argument("--arms", nargs="+", default=["main"], help=f"main, or of: {', '.join(ARMS)}")
    parser.add_argument("--shifts", type=float, nargs="+", help="m: start success of the discarded block in each")
    parser.add_argument("--shift-episodes", type=int, default=2048)
    parser.add_argument("--tune", action="store_true", help="the arms with each setting of benchmarks.study.tuning")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"))
    parser.add_argument("--out", type=Path, default=Path("docs/study"))
    parser.add_argument("--toy", action="store_true", help="two iterations of a few episodes, to try the machinery")
    parser.add_argument("--set", type=json.loads, default={}, metavar="JSON", help="fields of Scale, {'shift': 0.02}")
    args = parser.parse_args()
    arms = [name for arm in args.arms for name in (MAIN if arm == "main" else (arm,))]
    if unknown := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"unknown arms: {', '.join(unknown)}; there are: main, {', '.join(ARMS)}")
    scale = dataclasses.replace(TOY if args.toy else Scale(), **args.set)
    if args.shifts:
        choose_shift(args.task, scale, args.shifts, args.shift_episodes, args.runs)
    if args.tune:
        tune(args.task, scale, arms, args.runs)
    for block in args.blocks:  # block by block: what is finished early is a whole block
        for name in arms:
            run_arm(args.task, scale, block, name, args.runs)
    if args.report:
        from structrl.task import load_task

        task = load_task(args.task).name
        print(report(args.runs, task, args.out))
        if (args.runs / "tuning").exists():
            print(save_trials(args.runs, task, scale, args.out / "tuning.csv"))


if __name__ == "__main__":
    main()
