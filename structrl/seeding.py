"""Counter-based randomness: no generator state is ever saved.

Every random number is drawn from `SeedSequence([seed, stream, iteration, episode, chunk, ...])` with *global* episode
numbers, so that the number of ranks or environments, overlap and resuming change nothing.
"""

import enum

import numpy as np


class Stream(enum.IntEnum):
    """Independent purposes of randomness; the value is part of the seed, so never renumber."""

    START = 1  # poses and initial states of training episodes
    NOISE = 2  # initial noise and SDE noise of the policy
    MINIBATCH = 3  # permutations of the update
    DEMOS = 4  # starts and sloppiness of demonstrations
    EVALUATE = 5  # starts and initial noise of evaluation episodes
    IMITATION = 6  # batches, noise and times of supervised flow matching
    INDEX = 7  # the stochastic denoising step of mode `one`


def generator(*counters: int) -> np.random.Generator:
    """A numpy generator that is a pure function of its counters (seed, stream, iteration, ...)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(counters)))


def torch_seed(*counters: int) -> int:
    """A 63-bit seed for `torch.Generator.manual_seed`, a pure function of its counters."""
    return int(np.random.SeedSequence(counters).generate_state(1, np.uint64)[0] >> np.uint64(1))


def normal(counters: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal float32 [B, *shape]; row b is a pure function of `counters[b]` (int64 [B, n])."""
    out = np.empty((len(counters), *shape), np.float32)
    for row, key in zip(out, counters.tolist(), strict=True):
        row[...] = generator(*key).standard_normal(shape, dtype=np.float32)
    return out
