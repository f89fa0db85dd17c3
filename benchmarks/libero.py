"""Speed of LIBERO: structrl, plain robosuite and TorchRL's LiberoEnv on one task with one sequence of actions.

    .venv/bin/python benchmarks/libero.py --libero PYTHON [--steps 128] [--workers 2]

PYTHON is the one that `structrl sims install libero` made. Every row is a process of its own. TorchRL is lent to that
Python from this one's packages, which works where both are of the same version; otherwise its row is left out.

CPU seconds are those of the process with all its threads, so they can be compared on a machine that is busy.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # not this folder: the package that is measured has the name of this file
SUITE, TASK, CHUNK, SIZE = "libero_10", 2, 16, 128
CAMERAS = ["agentview", "wrist"]
OURS = {
    "structrl": {},
    "structrl, fast": {"fast": True},
    "structrl, cameras": {"cameras": CAMERAS, "camera_size": SIZE},
    "structrl, fast, cameras": {"fast": True, "cameras": CAMERAS, "camera_size": SIZE},
}
ROWS = ["robosuite", "structrl", "structrl, fast", "TorchRL, cameras", "structrl, cameras", "structrl, fast, cameras"]
BARS = [  # row, what it is compared with, and how many times faster it has to be
    ("structrl", "robosuite", 1.0),
    ("structrl, fast", "robosuite", 1.5),
    ("structrl, cameras", "TorchRL, cameras", 8.0),
    ("structrl, fast, cameras", "TorchRL, cameras", 10.0),
]


def actions(steps):
    """[steps, 7], gentle ones: what a policy does, not what noise does."""
    rng = np.random.default_rng(0)
    return np.clip(np.cumsum(rng.normal(0, 0.15, (steps, 7)), 0), -0.6, 0.6).astype(np.float32)


def memory():
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def timed(work):
    """CPU and wall seconds of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def task_spec():
    from structrl.lang.spec import AtomSpec, SubtaskSpec, TaskSpec

    atoms = AtomSpec("turned_on", ("flat_stove_1",)), AtomSpec("on", ("moka_pot_1", "flat_stove_1_cook_region"))
    subtasks = tuple(SubtaskSpec(atom.predicate, str(atom), (("atom", a),)) for a, atom in enumerate(atoms))
    return TaskSpec(
        "benchmark",
        sim="libero",
        sim_args={"suite": SUITE, "task": TASK},
        horizon=10**6,
        atoms=atoms,
        subtasks=subtasks,
    )


def ours(steps, **arguments):
    from structrl.sims.base import Start
    from structrl.sims.chunks import ChunkRunner
    from structrl.sims.libero import LiberoSimulator

    sim, ids = LiberoSimulator([task_spec()], 5, **arguments), np.array([0])
    runner = ChunkRunner(sim)

    def reset(env, init):
        runner.reset(np.array([env]), [Start(0, init, (0,))])
        sim.observe(np.array([env]))

    build, _ = timed(lambda: reset(0, 0))
    fresh, _ = timed(lambda: reset(0, 1))
    again, _ = timed(lambda: reset(0, 0))
    first = memory()
    for env in range(1, 5):
        reset(env, env)
    chunks = np.broadcast_to(actions(steps).reshape(-1, 1, CHUNK, 7), (steps // CHUNK, 5, CHUNK, 7))
    runner.truncated[1:] = True  # they only had to be there

    def run():
        for chunk in chunks:
            runner.run(chunk)
            sim.observe(ids)

    cpu, wall = timed(run)
    return {
        "cpu": cpu,
        "wall": wall,
        "build": build,
        "reset": fresh,
        "again": again,
        "memory": first,
        "per_env": (memory() - first) / 4,
    }


def robosuite(steps):
    """The bare `env.step` of LIBERO's own environment, without rendering."""
    from structrl.sims.libero.suite import find_task, load_libero

    task = find_task(SUITE, TASK)
    control = load_libero().env_wrapper.ControlEnv
    options = {"use_camera_obs": False, "has_offscreen_renderer": False, "ignore_done": True}
    envs = []
    build, _ = timed(lambda: envs.append(control(bddl_file_name=str(task.bddl), **options)))
    env, inits = envs[0], task.init_states()

    def reset():
        env.reset()
        env.set_init_state(inits[0])
        for _ in range(10):
            env.step([0.0] * 6 + [-1.0])

    fresh, _ = timed(reset)
    first = memory()
    cpu, wall = timed(lambda: [env.step(action) for action in actions(steps).astype(float)])
    envs.append(control(bddl_file_name=str(task.bddl), **options))
    return {
        "cpu": cpu,
        "wall": wall,
        "build": build,
        "reset": fresh,
        "again": fresh,
        "memory": first,
        "per_env": memory() - first,
    }


def torchrl(steps):
    """TorchRL's LiberoEnv, which renders after every action."""
    from structrl.sims.libero.suite import find_task

    inits = find_task(SUITE, TASK).init_states()
    import torch
    from torchrl.envs import LiberoEnv

    torch.set_num_threads(1)
    envs = []

    def make():
        envs.append(
            LiberoEnv(
                SUITE,
                TASK,
                camera_height=SIZE,
                camera_width=SIZE,
                wrist_camera="robot0_eye_in_hand",
                from_pixels=True,
                init_states=inits,
                init_state_mode="fixed",
                max_episode_steps=None,
            )
        )
        envs[-1].reset()

    build, _ = timed(make)
    env = envs[0]
    fresh, _ = timed(env.reset)
    first = memory()
    step = env.reset()
    given = torch.as_tensor(actions(steps))

    def run():
        nonlocal step
        for action in given:
            step = env.step(step.set("action", action))["next"]

    cpu, wall = timed(run)
    make()
    return {
        "cpu": cpu,
        "wall": wall,
        "build": build,
        "reset": fresh,
        "again": fresh,
        "memory": first,
        "per_env": memory() - first,
    }


def pool(python, steps, workers):
    """Steps per wall second of two environments in worker processes, and the seconds until they are ready."""
    from structrl.sims.base import Start
    from structrl.sims.pool import Pool

    begin = time.perf_counter()
    made = Pool(
        "libero",
        "structrl.sims.libero:LiberoSimulator",
        [task_spec()],
        2,
        CHUNK,
        OURS["structrl, cameras"],
        workers=workers,
        python=python,
    )
    ready = time.perf_counter() - begin
    ids = np.arange(2)
    made.reset(ids, [Start(0, 0, (0,)), Start(0, 1, (0,))])
    made.observe(ids)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    for chunk in actions(steps).reshape(-1, CHUNK, 7):
        made.run(np.stack([chunk, chunk]))
        made.observe(ids)
    wall = time.perf_counter() - begin
    made.close()
    return {"rate": 2 * steps / wall, "ready": ready, "first": first}


def row(python, name, steps):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": os.environ.get("LP_NUM_THREADS", "1")}
    lent = [path for path in sys.path if path.endswith("site-packages")]
    command = [python, __file__, "--row", name, "--steps", str(steps), "--lend", *lent]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def measure(name, steps, lent):
    if name == "robosuite":
        return robosuite(steps)
    if name == "TorchRL, cameras":
        sys.path += lent  # at the end: LIBERO's own packages come first
        return torchrl(steps)
    return ours(steps, **OURS[name])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libero", help="the Python that has LIBERO")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--lend", nargs="*", default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measure(given.row, given.steps, given.lend)))
        return
    if not given.libero:
        from structrl.sims.installed import own_python

        given.libero = own_python("libero")
    print(f"{SUITE} task {TASK}, {given.steps} steps, chunks of {CHUNK}, cameras: 2 of {SIZE} px, one environment")
    head = ["", "steps / CPU s", "steps / s", "ms / step", "first start s", "reset ms", "again ms", "MB", "MB / env"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    found = {}
    for name in ROWS:
        got = row(given.libero, name, given.steps)
        if got is None:
            continue
        found[name] = got
        cells = [
            f"{given.steps / got['cpu']:.1f}",
            f"{given.steps / got['wall']:.1f}",
            f"{got['cpu'] / given.steps * 1e3:.2f}",
            f"{got['build']:.1f}",
            f"{got['reset'] * 1e3:.0f}",
            f"{got['again'] * 1e3:.1f}",
            f"{got['memory']:.0f}",
            f"{got['per_env']:.0f}",
        ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print("\nCPU seconds throughout, but for steps / s. `again` is a reset to a start that was settled before.\n")
    for name, other, bar in BARS:
        if name in found and other in found:
            times = found[other]["cpu"] / found[name]["cpu"]
            print(f"{name}: {times:.1f} times the steps of {other} (wanted {bar:g})")
    if "TorchRL, cameras" in found:
        slow, quick = found["TorchRL, cameras"]["reset"], found["structrl, cameras"]
        print(f"reset: {slow / quick['reset']:.0f} times faster than TorchRL, {slow / quick['again']:.0f} once settled")
    for workers in given.workers:
        got = pool(given.libero, given.steps, workers)
        print(
            f"{workers} worker(s), 2 environments, cameras: {got['rate']:.1f} steps / s; "
            f"workers ready after {got['ready']:.1f} s, first observation after {got['first']:.1f} s"
        )


if __name__ == "__main__":
    main()
