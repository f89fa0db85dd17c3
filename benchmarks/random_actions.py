"""Robustness of the tabletop: episodes of random actions over all scenes and tasks, and what went wrong in them.

    python -m benchmarks.random_actions [--episodes 10000] [--horizon 96] [--num-envs 250] [--seed 0] [--threads 0]

Half of the episodes take a fresh uniform action every step, half hold one for 2 to 40 steps ("sticky"): those push
against things. Counted, by task and kind: episodes with unstable physics, MuJoCo's warnings by name, episodes that end
with an object out of the hand's reach or below the table, episodes in which a subtask's condition became true (a hand
that does something), and batches that measured or observed what is not finite. Memory is printed before and after. It
exits with 1 for values that are not finite, or growth by more than 200 MB.
"""

import argparse
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import mujoco
import numpy as np

from structrl.resources import folder
from structrl.seeding import Stream, generator
from structrl.sims.base import Ids, Start
from structrl.sims.chunks import ChunkRunner
from structrl.sims.tabletop import TabletopSimulator
from structrl.sims.tabletop.scene import HAND_RANGE
from structrl.task import load_task

KINDS = ("uniform", "sticky")
REACH = 0.06  # m beyond the range of the hand's middle at which it can still touch an object
HOLD = (2, 40)  # steps of a sticky action
GROWTH = 200.0  # MB


def resident() -> float:
    """Resident memory of this process now, MB."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except FileNotFoundError:  # no Linux: the peak instead
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def escaped(sim: TabletopSimulator, ids: Ids) -> np.ndarray:
    """Which environments have an object out of reach or below the table, [n]."""
    at = sim.view(ids).objects
    low, high = HAND_RANGE[:, :2] + [[-REACH], [REACH]]
    return ((at[..., :2] < low) | (at[..., :2] > high)).any((1, 2)) | (at[..., 2] < 0).any(1)


def actions(kind: str, episodes: list[int], horizon: int, seed: int) -> np.ndarray:
    """Actions [n, horizon, 5]; a pure function of the episodes' numbers."""
    out = np.empty((len(episodes), horizon, 5), np.float32)
    for row, episode in zip(out, episodes, strict=True):
        rng = generator(seed, int(Stream.NOISE), KINDS.index(kind), episode)
        row[:] = rng.uniform(-1, 1, row.shape)
        if kind == "sticky":
            ends = np.cumsum(rng.integers(*HOLD, horizon))
            row[:] = row[np.searchsorted(ends, np.arange(horizon), side="right")]
    return out


def play(task: str, kind: str, episodes: list[int], horizon: int, num_envs: int, seed: int, threads: int) -> Counter:
    """Run the episodes of one task and kind; returns counts."""
    sim = TabletopSimulator([load_task(task)], num_envs, threads)
    runner = ChunkRunner(sim, record=True)
    count: Counter = Counter(episodes=len(episodes))
    for first in range(0, len(episodes), num_envs):
        batch = episodes[first : first + num_envs]
        ids = np.arange(len(batch))
        runner.reset(ids, [Start(0, -1, (seed, int(Stream.START), 0, episode)) for episode in batch])
        given = np.zeros((num_envs, horizon, 5), np.float32)
        given[: len(batch)] = actions(kind, batch, horizon, seed)
        result = runner.run(given)
        seen = sim.observe(ids)
        finite = [np.isfinite(result.values[ids]).all(), *(np.isfinite(each).all() for each in seen.values())]
        count["not_finite"] += not all(finite)
        count["steps"] += int(result.steps[ids].sum())
        count["unstable"] += int(result.unstable[ids].sum())
        count["successes"] += int(result.success[ids].sum())
        count["became_true"] += int((result.holds[ids, 1:] & ~result.holds[ids, :1]).any(1).sum())
        count["escaped"] += int((escaped(sim, ids) & ~result.unstable[ids]).sum())
        warnings = sim.batch.warning[ids, :, 1].sum(0)
        for number in np.flatnonzero(warnings):
            count[mujoco.mjtWarning(number).name] += int(warnings[number])
        runner.truncated[:] = True  # those cut short by the benchmark's own horizon stand still until their reset
    sim.close()
    return count


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--horizon", type=int, default=96, help="steps of an episode")
    parser.add_argument("--num-envs", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="of MuJoCo; 0: all")
    args = parser.parse_args(argv)
    tasks = sorted(f"tabletop/{Path(file.name).stem}" for file in (folder("tasks") / "tabletop").iterdir())
    shares = {(task, kind): [] for task in tasks for kind in KINDS}
    for episode in range(args.episodes):
        shares[list(shares)[episode % len(shares)]].append(episode)
    rest = (args.horizon, args.num_envs, args.seed, args.threads)
    play(tasks[0], KINDS[0], [0], *rest)  # what is loaded once does not count as growth
    before, begin = resident(), time.perf_counter()
    columns = ("episodes", "steps", "unstable", "escaped", "became_true", "successes", "not_finite")
    print(f"{'task':<24}{'kind':<9}" + "".join(f"{name:>12}" for name in columns) + "  warnings")
    total: Counter = Counter()
    for (task, kind), episodes in shares.items():
        if episodes:
            count = play(task, kind, episodes, *rest)
            total += count
            print(line(task, kind, count, columns), flush=True)
    print(line("all", "", total, columns))
    grown = resident() - before
    print(f"memory {before:.0f} MB before, {before + grown:.0f} MB after; {time.perf_counter() - begin:.0f} s")
    return int(total["not_finite"] > 0 or grown > GROWTH)


def line(task: str, kind: str, count: Counter, columns: tuple[str, ...]) -> str:
    """One row of the table."""
    warnings = ", ".join(f"{name} {number}" for name, number in count.items() if name.startswith("mjWARN"))
    numbers = "".join(f"{count[name]:>12}" for name in columns)
    return f"{task:<24}{kind:<9}{numbers}  {warnings or 'none'}"


if __name__ == "__main__":
    sys.exit(main())
