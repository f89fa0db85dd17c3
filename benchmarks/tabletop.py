"""Speed of every tabletop scene over raw `mujoco.batch` stepping of it with the same controls, in one run.

    python -m benchmarks.tabletop [--num-envs 128] [--steps 72] [--repeats 5] [--threads 1]

A recording of the scripted expert is replayed by each contender in turn, several times; control steps per second of
process CPU time and of wall time are medians, and the ratios are medians of ratios within a turn, so that a busy
machine slows both sides alike. `raw` writes MuJoCo's controls and steps; it evaluates nothing. `simulator` adds action
mapping, atoms and observations; `chunk env` is what training runs: conditions, reward and TensorDict as well.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from mujoco.batch import Batch
from tensordict import TensorDict
from torchrl.envs.utils import step_mdp

from structrl import keys
from structrl.envs import EnvConfig, make_env, start_row
from structrl.seeding import Stream
from structrl.sims.base import Start
from structrl.sims.tabletop import scene
from structrl.sims.tabletop.expert import TabletopExpert
from structrl.sims.tabletop.simulator import TabletopSimulator
from structrl.task import load_task

TASKS = ("tabletop/pack_lunch", "tabletop/stack_tower", "tabletop/cook_dinner")  # one for each scene
CHUNK = 8  # environment steps


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
    starts = [Start(0, -1, (seed, int(Stream.START), 0, int(i))) for i in ids]
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


def raw(name: str, recording: Recording, threads: int) -> Callable[[], np.ndarray]:
    """MuJoCo's batch of scene `name` alone; returns its final state."""
    batch = Batch(scene.load_model(name), len(recording.starts), threads)
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
            if (t + 1) % CHUNK == 0:
                sim.observe(ids)
        return sim.state(ids)["physics"]

    return replay


def chunk_env(task: str, recording: Recording, threads: int) -> Callable[[], np.ndarray]:
    """The whole environment of training, from the action chunk to the reward in the TensorDict."""
    num_envs = len(recording.starts)
    env = make_env(EnvConfig(tasks=[task], num_envs=num_envs, chunk=CHUNK, sim={"threads": threads}))
    ids = np.arange(num_envs)
    starts = torch.tensor([start_row(start) for start in recording.starts])
    reset = env.reset(TensorDict({keys.START: starts}, [num_envs]))
    state = env.base_env.state(ids)
    chunks = torch.from_numpy(recording.actions).unflatten(0, (-1, CHUNK)).transpose(1, 2)  # [chunks, E, H, A]

    def replay() -> np.ndarray:
        env.base_env.set_state(ids, state)
        td = reset.clone()
        for action in chunks:
            td = step_mdp(env.step(td.set(keys.ACTION, action)))
        if td[keys.DONE].any():
            raise SystemExit("an episode ended within the recording: the env then does less work; use fewer --steps")
        return env.base_env.simulator.state(ids)["physics"]

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--steps", type=int, default=72)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task in TASKS:
        sim = TabletopSimulator([load_task(task)], args.num_envs, args.threads)
        print(f"scene {sim.scene.name}, {task}, {args.num_envs} environments x {args.steps} steps")
        recording = record(sim, args.steps)
        contenders = {
            "raw": raw(sim.scene.name, recording, args.threads),
            "simulator": simulator(sim, recording),
            "chunk env": chunk_env(task, recording, args.threads),
        }
        final = {name: replay() for name, replay in contenders.items()}
        if different := [name for name in final if not np.array_equal(final["raw"], final[name])]:
            raise SystemExit(f"raw and {', '.join(different)} ended in different states: they did not do the same work")
        compare(contenders, args.num_envs * args.steps, args.repeats)


if __name__ == "__main__":
    main()
