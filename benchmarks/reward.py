"""Cost of the structured reward per chunk of a batch, on one CPU thread: python -m benchmarks.reward

Prints milliseconds per chunk for the pure functions and for the whole transform (TensorDict reads, writes and the
critic's reward state included), under a realistic trace (each subtask turns true once, in some order, and stays) and a
dense random one (every condition flips a coin every step: the most completions per chunk), and the ratio to the
brute-force twin of the tests. Last, the transform's share of the tabletop's simulation time.
"""

import argparse
import random
import statistics
import time

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.plan import StackedPlans, stack_plans
from structrl.rewards import RewardOptions, StructuredReward, functional
from structrl.sims.base import Start
from structrl.sims.tabletop.simulator import TabletopSimulator
from structrl.task import load_task
from tests.rewards.strategies import series_parallel, spec_of
from tests.rewards.twin import TwinPlan, twin


def make_plans(num_subtasks: int, rng: random.Random) -> list[TwinPlan]:
    def plain(order):
        durations = [rng.uniform(10, 80) for _ in range(num_subtasks)]
        return TwinPlan(order, durations, [1.0] * num_subtasks, [False] * num_subtasks, [False] * num_subtasks)

    chain = [set(range(i)) for i in range(num_subtasks)]
    group = [set() for _ in range(num_subtasks)]
    return [plain(o) for o in (chain, group, series_parallel(rng, num_subtasks), series_parallel(rng, num_subtasks))]


def make_trace(kind: str, num_envs: int, length: int, num_subtasks: int) -> torch.Tensor:
    """bool [E, length + 1, N]."""
    generator = torch.Generator().manual_seed(0)
    if kind == "dense":
        return torch.rand(num_envs, length + 1, num_subtasks, generator=generator) < 0.5
    turns = torch.randint(1, 2 * length, (num_envs, 1, num_subtasks), generator=generator)
    return torch.arange(length + 1)[:, None] >= turns


def median_ms(call, repeats: int) -> float:
    """Median CPU time over blocks of calls: the machine may be shared."""
    for _ in range(5):
        call()
    blocks = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(10):
            call()
        blocks.append((time.process_time() - start) * 100)
    return statistics.median(blocks)


def replayed(
    stacked: StackedPlans, task: Tensor, holds: Tensor, chunk: int, options: RewardOptions, timed: int
) -> tuple:
    """Milliseconds per chunk of the pure functions and of the transform, over the first `timed` chunks of `holds`."""
    num_envs = len(task)
    reward = StructuredReward(stacked, options, chunk)
    zero = torch.zeros(num_envs, 1, dtype=torch.int64)
    first = {keys.TASK: task[:, None], keys.TIME: zero, keys.HOLDS: holds[:, :1].expand(-1, chunk + 1, -1)}
    td = reward._reset(TensorDict({}, [num_envs]), TensorDict(first, [num_envs]))
    cases = []
    for c in range(timed):
        chunk_of = {
            keys.TASK: task[:, None],
            keys.HOLDS: holds[:, c * chunk : (c + 1) * chunk + 1],
            keys.SUCCESS: zero.bool(),
            keys.STEPS: zero + chunk,
            keys.TERMINATED: zero.bool(),
            keys.TRUNCATED: zero.bool(),
            keys.TIME: zero + (c + 1) * chunk,
        }
        after = TensorDict(chunk_of, [num_envs])
        before, td = td, reward._step(td, after.copy())
        cases.append((before, after))

    def functions():
        for before, after in cases:
            state = functional.RewardState(*(before[keys.PLAN, name] for name in functional.RewardState._fields))
            steps, at = after[keys.STEPS], after[keys.TIME]
            rows, holds_ELN = stacked.rows(task), after[keys.HOLDS][:, 1:]
            functional.advance(rows, state, holds_ELN, steps, after[keys.SUCCESS], at - steps, reward.options, chunk)

    def transform():
        for before, after in cases:
            reward._step(before, after.copy())

    return median_ms(functions, 7) / timed, median_ms(transform, 7) / timed


def measure(kind: str, num_envs: int, chunk: int, num_subtasks: int, chunks: int, options: RewardOptions) -> None:
    plans = make_plans(num_subtasks, random.Random(0))
    stacked = stack_plans([spec_of(p, f"toy{k}", chunk * chunks) for k, p in enumerate(plans)])
    task = torch.arange(num_envs) % len(plans)
    holds = make_trace(kind, num_envs, chunk * chunks, num_subtasks)
    # The dense trace completes everything in its first chunks: time those, the realistic one over its whole length.
    functions, transform = replayed(stacked, task, holds, chunk, options, chunks if kind == "realistic" else 2)
    sample = range(0, num_envs, max(1, num_envs // 16))
    rows = {e: holds[e].tolist() for e in sample}
    failure = [False] * (chunk * chunks + 1)
    start = time.process_time()
    for e in sample:
        twin(plans[int(task[e])], rows[e], failure, chunk=chunk, gate=options.gate)
    loops = (time.process_time() - start) * 1000 / len(sample) * num_envs / chunks
    print(
        f"{kind:<10} functions {functions:5.2f} ms   transform {transform:5.2f} ms   twin {loops:5.1f} ms   "
        f"twin / functions {loops / functions:.0f}"
    )


def measure_tabletop(options: RewardOptions, num_envs: int = 128, chunk: int = 8, chunks: int = 25) -> None:
    """The transform against the simulation (physics and atoms) of the same number of chunks, CPU time of both."""
    task = load_task("tabletop/pack_lunch")
    sim = TabletopSimulator([task], num_envs, threads=1)
    ids = np.arange(num_envs)
    sim.reset(ids, [Start(0, -1, (0, int(e))) for e in ids])
    generator = np.random.default_rng(0)
    actions = generator.uniform(-1, 1, (chunk * chunks, num_envs, len(sim.action.names))).astype(np.float32)
    start = time.process_time()
    for action in actions:
        sim.step(ids, action)
        sim.atoms(ids)
    simulation = (time.process_time() - start) * 1000 / chunks
    holds = make_trace("realistic", num_envs, chunk * chunks, len(task.subtasks))
    rows = torch.zeros(num_envs, dtype=torch.int64)
    _, transform = replayed(stack_plans([task]), rows, holds, chunk, options, chunks)
    print(
        f"tabletop, {num_envs} environments x {chunk} steps: simulation {simulation:.0f} ms of CPU time per chunk, "
        f"reward {transform:.2f} ms, {100 * transform / simulation:.2f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--num-subtasks", type=int, default=8)
    parser.add_argument("--chunks", type=int, default=15, help="length of an episode")
    parser.add_argument("--gate", default="latched")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{args.num_envs} environments x {args.chunk} steps x {args.num_subtasks} subtasks, gate {args.gate}, CPU time "
        "per chunk of the batch, one thread"
    )
    options = RewardOptions(gate=args.gate)
    for kind in ("realistic", "dense"):
        measure(kind, args.num_envs, args.chunk, args.num_subtasks, args.chunks, options)
    measure_tabletop(options)


if __name__ == "__main__":
    main()
