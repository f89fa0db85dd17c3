"""What overlap and a second rank are worth on this machine: python -m benchmarks.pipeline

    python -m benchmarks.pipeline [--overlap-envs 256] [--rank-envs 96] [--repeats 3] [--iterations 5]

Everything is measured in one run, alternately, as ratios of medians. 1: rollouts with `env.overlap` off and on, by a
policy whose size is chosen so that acting costs about what simulating costs. 2: training with one rank and with two
(twice the environments and episodes; one physics thread each, overlap off), by environment steps per second of an
iteration. 3: what two processes can be worth here at all: two independent one-rank runs at once against one alone.
Nothing else should run meanwhile.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from structrl.envs import EnvConfig, make_halves
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import env_spec
from structrl.rl.actors import sampling
from structrl.rl.rollout import run_episodes
from structrl.seeding import Stream
from structrl.sims.base import Start

TASK = "tabletop/pack_lunch"
SIZES = ((128, 3), (256, 4), (256, 8), (384, 8), (512, 8), (512, 12))  # width, depth of the policy


def environment(num_envs: int, overlap: bool) -> Any:
    return make_halves(EnvConfig([TASK], num_envs=num_envs, sim={"threads": 1}, overlap=overlap))


def rollout(env: Any, policy: ActorCritic, episodes: int) -> tuple[dict[str, float], int]:
    """Seconds by what they were spent on, `cpu` among them, and environment steps."""
    starts = [Start(0, -1, (0, Stream.START, 0, e)) for e in range(episodes)]
    cpu = time.process_time()
    with torch.no_grad():
        done = run_episodes(env, sampling(policy, starts), starts)
    return done.seconds | {"cpu": time.process_time() - cpu}, int(done.table["length"].sum())


def overlap_table(episodes: int, repeats: int) -> None:
    envs = {overlap: environment(episodes, overlap) for overlap in (False, True)}
    spec = env_spec(envs[False])

    def policy(width: int, depth: int) -> ActorCritic:
        torch.manual_seed(0)
        return ActorCritic(CompactVLA(spec, width=width, depth=depth), FlowOptions(noise=1.0))

    trials = {}
    for size in SIZES:
        seconds, _ = rollout(envs[False], policy(*size), episodes)
        trials[size] = seconds["infer"] / seconds["simulate"]
        if trials[size] > 1:
            break
    size = min(trials, key=lambda s: max(trials[s], 1 / trials[s]))
    print(f"## Overlap: {episodes} environments of {TASK}, policy {size[0]} x {size[1]}\n")
    print("| overlap | s | simulate s | infer s | idle s | CPU s | steps/s |\n|---|---|---|---|---|---|---|")
    chosen = policy(*size)
    runs: dict[bool, list[tuple[dict[str, float], int]]] = {False: [], True: []}
    for _ in range(repeats):
        for overlap, env in envs.items():
            runs[overlap].append(rollout(env, chosen, episodes))
    medians = {}
    for overlap, results in runs.items():
        middle = {k: statistics.median(seconds[k] for seconds, _ in results) for k in results[0][0]}
        medians[overlap] = middle
        columns = [middle[k] for k in ("collect", "simulate", "infer", "idle", "cpu")]
        print(
            f"| {'on' if overlap else 'off'} | "
            + " | ".join(f"{x:.2f}" for x in columns)
            + f" | {results[0][1] / middle['collect']:.0f} |"
        )
    ratio = medians[False]["collect"] / medians[True]["collect"]
    cost = medians[True]["cpu"] / medians[False]["cpu"]
    print(f"\n{ratio:.2f} times faster with overlap (bar 1.3), at {cost:.2f} times the CPU time\n")
    for env in envs.values():
        env.close()


def config(folder: Path, ranks: int, episodes: int, iterations: int) -> Path:
    """A config of a training run with `episodes` environments and episodes on every rank."""
    plain = {
        "seed_everything": 0,
        "threads": 1,
        "trainer": {
            "default_root_dir": str(folder), "accelerator": "cpu", "devices": ranks, "max_epochs": iterations,
            "strategy": "ddp" if ranks > 1 else "auto",
        },
        "model": {
            "class_path": "structrl.rl.module.PPO",
            "init_args": {
                "policy": {"class_path": "structrl.policies.compact.CompactVLA"},
                "flow": {"mode": "early"},
                "ppo": {"epochs": 1, "minibatches": 4},
            },
        },
        "data": {
            "class_path": "structrl.rl.data.RolloutData",
            "init_args": {
                "env": {"tasks": [TASK], "num_envs": episodes, "sim": {"threads": 1}},
                "episodes_per_iteration": episodes * ranks,
                "evaluate_episodes": 0,
            },
        },
    }  # fmt: skip
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(plain))
    return path


def train(path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "structrl.cli", "fit", "--config", str(path)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})


def speed(path: Path, process: subprocess.Popen[bytes]) -> float:
    """Environment steps per second: the median of a run's iterations but the first."""
    if process.wait():
        raise RuntimeError(f"structrl fit --config {path} failed")
    log = EventAccumulator(str(path.with_suffix("") / "tensorboard"))
    log.Reload()
    return statistics.median(e.value for e in log.Scalars("charts/SPS")[1:])


def ranks_table(episodes: int, iterations: int, repeats: int) -> None:
    one: list[float] = []
    two: list[float] = []
    both: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        for repeat in range(repeats):
            for ranks, found in ((1, one), (2, two)):
                path = config(Path(name) / f"ranks-{ranks}-{repeat}", ranks, episodes, iterations)
                found.append(speed(path, train(path)))
            paths = [config(Path(name) / f"alone-{i}-{repeat}", 1, episodes, iterations) for i in range(2)]
            processes = [train(path) for path in paths]
            both.append(sum(speed(path, process) for path, process in zip(paths, processes, strict=True)))
    alone = statistics.median(one)
    print(f"## Ranks: {episodes} environments of {TASK} each, {iterations} iterations, {repeats} runs of each\n")
    print("| | environment steps/s | times one rank |\n|---|---|---|")
    for what, found in (("one rank", one), ("two ranks (bar 1.8)", two), ("two independent runs at once", both)):
        print(f"| {what} | {statistics.median(found):.0f} | {statistics.median(found) / alone:.2f} |")
    print(
        f"\nTwo ranks reach {statistics.median(two) / statistics.median(both):.2f} of what two processes that never "
        f"wait for each other reach on this machine ({os.cpu_count()} logical processors)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overlap-envs", type=int, default=256, help="environments, and episodes, of a rollout")
    parser.add_argument("--rank-envs", type=int, default=96, help="the same, of each rank")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    overlap_table(args.overlap_envs, args.repeats)
    ranks_table(args.rank_envs, args.iterations, args.repeats)


if __name__ == "__main__":
    main()
