"""Cost of the structured reward per chunk of a batch, on one CPU thread: python -m benchmarks.reward

Prints milliseconds per chunk for the pure functions and for the whole transform (TensorDict reads, writes and the
critic's reward state included), under a realistic trace (each subtask turns true once, in some order, and stays) and a
dense random one (every condition flips a coin every step: the most completions per chunk), and the ratio to the
brute-force twin of the tests.
"""

import argparse
import random
import statistics
import time

import torch
from tensordict import TensorDict

from structrl import keys
from structrl.plan import stack_plans
from structrl.rewards import RewardOptions, StructuredReward, functional
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


def measure(kind: str, num_envs: int, chunk: int, num_subtasks: int, chunks: int, options: RewardOptions) -> None:
    rng = random.Random(0)
    plans = make_plans(num_subtasks, rng)
    stacked = stack_plans([spec_of(p, f"toy{k}", chunk * chunks) for k, p in enumerate(plans)])
    task = torch.arange(num_envs) % len(plans)
    holds = make_trace(kind, num_envs, chunk * chunks, num_subtasks)
    # The dense trace completes everything in its first chunks: time those, the realistic one over its whole length.
    timed = range(chunks) if kind == "realistic" else range(2)

    reward = StructuredReward(stacked, options, chunk)
    column = {name: torch.zeros(num_envs, 1, dtype=torch.int64) for name in (keys.TIME, keys.STEPS)}
    first = {**column, keys.TASK: task[:, None], keys.HOLDS: holds[:, :1].expand(-1, chunk + 1, -1)}
    td = reward._reset(TensorDict({}, [num_envs]), TensorDict(first, [num_envs]))
    cases = []
    for c in range(chunks):
        after = TensorDict(
            {
                keys.TASK: task[:, None],
                keys.HOLDS: holds[:, c * chunk : (c + 1) * chunk + 1],
                keys.SUCCESS: torch.zeros(num_envs, 1, dtype=torch.bool),
                keys.STEPS: column[keys.STEPS] + chunk,
                keys.TIME: column[keys.TIME] + (c + 1) * chunk,
            },
            [num_envs],
        )
        before, td = td, reward._step(td, after.copy())
        if c in timed:
            cases.append((before, after))

    def pure():
        for before, after in cases:
            state = functional.RewardState(*(before[keys.PLAN, name] for name in functional.RewardState._fields))
            steps, at = after[keys.STEPS], after[keys.TIME]
            rows = stacked.rows(task)
            holds_ELN = after[keys.HOLDS][:, 1:]
            functional.advance(rows, state, holds_ELN, steps, after[keys.SUCCESS], at - steps, reward.options, chunk)

    def whole():
        for before, after in cases:
            reward._step(before, after.copy())

    pure_ms, whole_ms = median_ms(pure, 7) / len(cases), median_ms(whole, 7) / len(cases)
    sample = range(0, num_envs, max(1, num_envs // 16))
    rows = {e: holds[e].tolist() for e in sample}
    failure = [False] * (chunk * chunks + 1)
    start = time.process_time()
    for e in sample:
        twin(plans[int(task[e])], rows[e], failure, chunk=chunk)
    twin_ms = (time.process_time() - start) * 1000 / len(sample) * num_envs / chunks
    print(
        f"{kind:<10} functions {pure_ms:6.2f} ms   transform {whole_ms:6.2f} ms   twin {twin_ms:8.1f} ms"
        f"   twin / transform {twin_ms / whole_ms:6.0f}"
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


if __name__ == "__main__":
    main()
