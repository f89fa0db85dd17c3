"""Environment steps per second of the tabletop with and without cameras, and where the time of a rollout goes.

    MUJOCO_GL=egl python benchmarks/rendering.py [--num-envs 64] [--size 64] [--chunk 8] [--chunks 10]

Random actions, one observation per chunk, as in a rollout. Also: one picture as MuJoCo draws it by default (shadows,
four samples per pixel) against one as policies see it. Processor time is that of this process and its workers.
"""

import argparse
import os
import time
from collections.abc import Callable

import mujoco
import numpy as np
import torch

from structrl import keys
from structrl.envs import EnvConfig, make_env

TASK = "tabletop/pack_lunch"
CAMERAS = ["overview", "wrist"]


def cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def measure(what: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Wall and processor time of one call, ms."""
    what()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        what()
    return (time.perf_counter() - wall) / repeats * 1e3, (time.process_time() - cpu) / repeats * 1e3


def pictures(size: int, repeats: int) -> None:
    env = make_env(EnvConfig([TASK], num_envs=1, sim={"cameras": ["overview"], "camera_size": size, "threads": 1}))
    sim, one = env.base_env.runner.sim, np.arange(1)
    env.reset()
    data = sim.batch.get_data(0)
    mujoco.mj_forward(sim.model, data)
    with mujoco.Renderer(sim.model, size, size) as plain:

        def draw() -> None:
            plain.update_scene(data, "overview")
            plain.render()

        wall, cpu = measure(draw, repeats)
    print(f"{'one picture, MuJoCo defaults':<34} {wall:8.2f} ms wall {cpu:8.2f} ms CPU")
    wall, cpu = measure(lambda: sim.cameras.observe(sim.batch, one) and None, repeats)
    print(f"{'one picture, as policies see it':<34} {wall:8.2f} ms wall {cpu:8.2f} ms CPU")
    env.close()


def rollout(name: str, args: argparse.Namespace, workers: int, **sim: object) -> None:
    config = EnvConfig([TASK], num_envs=args.num_envs, chunk=args.chunk, workers=workers, sim={"threads": 1, **sim})
    before = cpu_seconds()
    env = make_env(config)
    td = env.reset()
    generator = torch.Generator().manual_seed(0)
    shape = (args.num_envs, args.chunk, 5)
    seen, wall = env.base_env.observe_seconds, time.perf_counter()
    steps = 0
    for _ in range(args.chunks):
        action = torch.rand(shape, generator=generator) * 2 - 1
        td, root = env.step_and_maybe_reset(td.set(keys.ACTION, action))
        steps += int(td["next", keys.STEPS].sum())
        td = root
    wall = time.perf_counter() - wall
    seen = env.base_env.observe_seconds - seen
    env.close()
    share = "in workers" if workers else f"{seen / wall:5.0%} observing"
    print(f"{name:<34} {steps / wall:8.0f} steps/s  {share}  ({cpu_seconds() - before:.1f} CPU-s with start-up)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--size", type=int, default=64, help="pixels")
    parser.add_argument("--chunk", type=int, default=8)
    parser.add_argument("--chunks", type=int, default=10, help="per environment")
    parser.add_argument("--repeats", type=int, default=50, help="pictures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{args.num_envs} environments, chunks of {args.chunk}, cameras of {args.size} px, {os.cpu_count()} CPUs")
    pictures(args.size, args.repeats)
    seen = {"cameras": CAMERAS, "camera_size": args.size}
    rollout("object states", args, 0)
    rollout("two cameras", args, 0, **seen)
    rollout("two cameras, one worker", args, 1, **seen)
    rollout("two cameras, two workers", args, 2, **seen)


if __name__ == "__main__":
    main()
