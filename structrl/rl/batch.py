"""From whole episodes to what the update reads: advantages, value targets, weights, minibatches.

Shapes: n chunks and P episodes of this rank, L chunks of the longest episode.
"""

from collections.abc import Callable

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.rl.advantages import chunk_gamma, gae
from structrl.rl.losses import episode_weights
from structrl.rl.options import PPOOptions, UpdateOptions
from structrl.rl.rollout import CHUNK, EPISODE, Episodes
from structrl.seeding import Stream, generator

ADVANTAGE, VALUE_TARGET, WEIGHT = "advantage", "value_target", "weight"  # f32 [n]


def add_advantages(episodes: Episodes, options: PPOOptions, final_value_P: Tensor | None = None) -> None:
    """Write ADVANTAGE (not normalised) and VALUE_TARGET into the chunks.

    Args:
        episodes: with VALUE in its chunks.
        options: gamma, lambda, time limit.
        final_value_P: value of the observation after each episode, required by `time_limit: bootstrap`.

    Raises:
        ValueError: `time_limit: bootstrap` without final values.
    """
    chunks, outcome = episodes.chunks, episodes.chunks["next"]
    row, column = chunks[EPISODE], chunks[CHUNK]
    P, L = len(episodes), int(column.max()) + 1

    def pad(x_n: Tensor, fill: float | bool = 0.0) -> Tensor:
        padded = torch.full((P, L), fill, dtype=x_n.dtype)
        padded[row, column] = x_n
        return padded

    value = pad(chunks[keys.VALUE].squeeze(-1))
    done = pad(outcome[keys.DONE].squeeze(-1), True)
    next_value = torch.cat([value[:, 1:], value.new_zeros(P, 1)], 1)
    if options.time_limit == "bootstrap":
        if final_value_P is None:
            raise ValueError("time_limit 'bootstrap' needs the value of each episode's final observation")
        terminated = pad(outcome[keys.TERMINATED].squeeze(-1), True)
        next_value[torch.arange(P), episodes.table["chunks"] - 1] = final_value_P
    else:
        terminated = done
    gamma = chunk_gamma(options.gamma, pad(outcome[keys.STEPS].squeeze(-1)), options.gamma_per)
    reward = pad(outcome[keys.REWARD].squeeze(-1))
    advantage, target = gae(reward, value, next_value, done, terminated, gamma, options.gae_lambda)
    chunks[ADVANTAGE], chunks[VALUE_TARGET] = advantage[row, column], target[row, column]


def add_weights(
    episodes: Episodes, options: UpdateOptions, horizon_T: Tensor, chunk: int, sum_ranks: Callable[[Tensor], Tensor]
) -> None:
    """Write WEIGHT into the chunks: 1, or weights of mean about 1 that make long episodes count as much as short ones.

    Args:
        episodes: of this rank; some may have no chunks (left).
        options: `average`.
        horizon_T: int64 [tasks].
        chunk: H, environment steps per chunk.
        sum_ranks: sums a tensor over the ranks, so that an episode weighs the same on whichever it was run.
    """
    row = episodes.chunks[EPISODE]
    if options.average == "chunks":
        episodes.chunks[WEIGHT] = torch.ones(len(row))
        return
    horizon_P = horizon_T[episodes.table[keys.TASK]]
    weight = episode_weights(episodes.table["length"].float(), horizon_P.float(), chunk)[row]
    chunks, count = sum_ranks(torch.tensor([len(row), len(row.unique())], dtype=torch.float64)).tolist()
    episodes.chunks[WEIGHT] = weight * (chunks / max(count, 1))


def minibatches(numbers_n: Tensor, total: int, count: int, seed: int, iteration: int, epoch: int) -> list[Tensor]:
    """Rows (int64) of this rank's chunks in each of `count` minibatches, in ascending order.

    The permutation is drawn over all ranks' chunks, so that minibatches hold the same chunks however many ranks there
    are; every rank makes `count` of them. One may be empty on a rank.

    Args:
        numbers_n: this rank's chunks as numbers in 0..total-1 over all ranks.
        total: chunks of all ranks.
        count: minibatches per epoch.
        seed: of the run.
        iteration: number of the iteration.
        epoch: pass over the data.
    """
    position = generator(seed, Stream.MINIBATCH, iteration, epoch).permutation(total)
    part = position[numbers_n.numpy()] * count // total
    return [torch.from_numpy(np.flatnonzero(part == m)) for m in range(count)]


def number_chunks(counts_GP: Tensor, rank: int, group: int = 1) -> tuple[Tensor, int]:
    """Numbers of rank `rank`'s chunks among all chunks, and how many there are in all.

    Args:
        counts_GP: int64 [ranks, P], chunks per episode, 0 for those that take no part; group p of rank g (`group`
            episodes that follow each other) is group p * ranks + g of the iteration.
        rank: this rank.
        group: episodes that are dealt to a rank together; divides P where there are several ranks.
    """
    grouped = counts_GP.unflatten(1, (-1, group)).transpose(0, 1) if len(counts_GP) > 1 else counts_GP.T[..., None]
    ordered = grouped.flatten()  # by global episode number
    first = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)[:-1]]).view(grouped.shape)[:, rank].flatten()
    mine = counts_GP[rank]
    inside = torch.cat([torch.arange(int(c)) for c in mine])  # numbers within the episode
    return torch.repeat_interleave(first, mine) + inside, int(ordered.sum())


def select_inputs(chunks: TensorDict) -> TensorDict:
    """What the update reads of the chunks; copied to the device minibatch by minibatch."""
    wanted = (
        keys.OBSERVATION, keys.TASK, keys.REWARD_STATE, keys.CHAIN, keys.INDEX, keys.LOG_PROB,
        keys.STEP_LOG_PROB, keys.VALUE, ADVANTAGE, VALUE_TARGET, WEIGHT, EPISODE, CHUNK,
    )  # fmt: skip
    return chunks.select(*wanted, strict=False)
