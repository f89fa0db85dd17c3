"""Speed of the tabletop over raw `mujoco.batch` stepping of the same scene with the same controls, in one run.

    python benchmarks/tabletop.py [--num-envs 128] [--steps 96] [--repeats 5] [--threads 1]

A recording of the scripted expert is replayed by each contender in turn, several times; control steps per second of
process CPU time and of wall time are medians, and the ratios are medians of ratios within a turn, so that a busy
machine slows both sides alike. `raw` writes MuJoCo's controls and steps; it evaluates nothing.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mujoco.batch import Batch

from structrl.lang.spec import TaskSpec
from structrl.sims.base import Start
from structrl.sims.tabletop import scene
from structrl.sims.tabletop.expert import TabletopExpert
from structrl.sims.tabletop.simulator import TabletopSimulator

OBSERVE_EVERY = 8  # steps of a chunk


@dataclass(frozen=True)
class Recording:
    """T steps of the expert in N environments: where they start, actions [T, N, 5], MuJoCo's controls [T, N, 6]."""

    starts: list[Start]
    physics: np.ndarray
    actions: np.ndarray
    controls: np.ndarray


def record(sim: TabletopSimulator, steps: int, seed: int = 0) -> Recording:
    """The expert's first `steps` steps, with nothing stopped at success."""
    ids = np.arange(sim.num_envs)
    starts = [Start(0, -1, (seed, int(i))) for i in ids]
    expert = TabletopExpert(sim)
    sim.reset(ids, starts)
    expert.reset(ids, starts)
    physics = sim.state(ids)["physics"]
    actions, controls = [], []
    for _ in range(steps):
        actions.append(expert.act(ids))
        sim.step(ids, actions[-1])
        controls.append(sim.view(ids).command)
    return Recording(starts, physics, np.stack(actions), np.stack(controls))


def raw(recording: Recording, threads: int) -> Callable[[], np.ndarray]:
    """MuJoCo's batch alone; returns its final state."""
    batch = Batch(scene.load_model(), len(recording.starts), threads)
    control = batch.bind("ctrl")

    def replay() -> np.ndarray:
        batch.state[:] = recording.physics
        for row in recording.controls:
            control[:] = row
            batch.step(nstep=scene.SUBSTEPS)
        return batch.state

    return replay


def simulator(sim: TabletopSimulator, recording: Recording) -> Callable[[], np.ndarray]:
    """The simulator: action mapping, stepping, every atom every step, an observation per chunk."""
    ids = np.arange(sim.num_envs)
    state = sim.state(ids) | {"physics": recording.physics}

    def replay() -> np.ndarray:
        sim.set_state(ids, state)
        for t, row in enumerate(recording.actions):
            sim.step(ids, row)
            sim.atoms(ids)
            if (t + 1) % OBSERVE_EVERY == 0:
                sim.observe(ids)
        return sim.state(ids)["physics"]

    return replay


def compare(contenders: dict[str, Callable[[], np.ndarray]], control_steps: int, repeats: int) -> dict[str, float]:
    """Time the contenders in turns, print a table, and return each one's CPU speed relative to the first one's."""
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, replay in contenders.items():
            c, w = time.process_time(), time.perf_counter()
            replay()
            c, w = time.process_time() - c, time.perf_counter() - w
            if turn:  # the first turn warms up
                cpu[name].append(control_steps / c)
                wall[name].append(control_steps / w)
    base = next(iter(contenders))
    ratios = {}
    print(f"{'':<12}{'steps/CPU-s':>14}{'steps/s':>12}{'CPU ratio':>12}{'wall ratio':>12}")
    for name in contenders:
        ratios[name] = statistics.median(a / b for a, b in zip(cpu[name], cpu[base], strict=True))
        wall_ratio = statistics.median(a / b for a, b in zip(wall[name], wall[base], strict=True))
        speed, wall_speed = statistics.median(cpu[name]), statistics.median(wall[name])
        print(f"{name:<12}{speed:>14.0f}{wall_speed:>12.0f}{ratios[name]:>12.3f}{wall_ratio:>12.3f}")
    return ratios


def load() -> TaskSpec:
    from structrl.task import load_task

    return load_task("tabletop/pack_lunch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    sim = TabletopSimulator([load()], args.num_envs, args.threads)
    recording = record(sim, args.steps)
    contenders = {"raw": raw(recording, args.threads), "simulator": simulator(sim, recording)}
    if not np.array_equal(*(replay() for replay in contenders.values())):
        raise SystemExit("raw and simulator ended in different states: they did not do the same work")
    compare(contenders, args.num_envs * args.steps, args.repeats)


if __name__ == "__main__":
    main()
