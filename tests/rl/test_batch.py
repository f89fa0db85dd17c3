"""Flat chunks to padded episodes and back, and minibatches that do not depend on the number of ranks."""

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from structrl import keys
from structrl.rl.batch import (
    ADVANTAGE,
    VALUE_TARGET,
    WEIGHT,
    add_advantages,
    add_weights,
    minibatches,
    number_chunks,
)
from structrl.rl.options import PPOOptions


def episodes_of(lengths, seed=0, truncated=(), H=4):
    """Episodes with random rewards and values; the last chunk of each executes 1 step."""
    g = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    chunk = torch.cat([torch.arange(c) for c in lengths])
    episode = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    last = chunk == torch.tensor(lengths)[episode] - 1
    cut = torch.isin(episode, torch.tensor(list(truncated), dtype=torch.int64)) & last
    steps = torch.where(last, 1, H)
    outcome = {
        keys.REWARD: torch.randn(n, 1, generator=g),
        keys.STEPS: steps[:, None],
        keys.DONE: last[:, None],
        keys.TERMINATED: (last & ~cut)[:, None],
    }
    chunks = {"episode": episode, "chunk": chunk, keys.VALUE: torch.randn(n, 1, generator=g), "next": outcome}
    table = {
        "chunks": torch.tensor(lengths),
        "length": torch.tensor([(c - 1) * H + 1 for c in lengths]),
        keys.TASK: torch.arange(len(lengths)) % 2,
    }

    class Fake(SimpleNamespace):
        def __len__(self):
            return len(lengths)

    return Fake(chunks=TensorDict(chunks, [n]), table=TensorDict(table, [len(lengths)]))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.sampled_from(["terminal", "bootstrap"]),
    st.sampled_from(["chunk", "step"]),
)
def test_advantages_of_each_episode_on_its_own(lengths, time_limit, gamma_per):
    truncated = range(0, len(lengths), 2)
    episodes = episodes_of(lengths, truncated=truncated)
    final = torch.arange(len(lengths)).float()
    add_advantages(episodes, PPOOptions(gamma=0.9, time_limit=time_limit, gamma_per=gamma_per), final)
    chunks = episodes.chunks
    row = 0
    for p, count in enumerate(lengths):
        later = 0.0
        boot = final[p].item() if time_limit == "bootstrap" and p in truncated else 0.0
        for t in reversed(range(row, row + count)):
            gamma = 0.9 if gamma_per == "chunk" else 0.9 ** int(chunks["next", keys.STEPS][t])
            value = chunks[keys.VALUE][t].item()
            ahead = boot if t == row + count - 1 else chunks[keys.VALUE][t + 1].item()
            later = chunks["next", keys.REWARD][t].item() + gamma * ahead - value + gamma * 0.95 * later
            assert abs(chunks[ADVANTAGE][t].item() - later) < 1e-4
            assert abs(chunks[VALUE_TARGET][t].item() - later - value) < 1e-4
        row += count


def test_weights_make_episodes_equal():
    episodes = episodes_of([5, 2])  # 17 and 5 of 20 and 8 steps
    add_weights(episodes, PPOOptions(average="episodes"), torch.tensor([20, 8]), 4, lambda x: x)
    weight = episodes.chunks[WEIGHT]
    torch.testing.assert_close(weight[:5].sum() / 7 * 2, torch.tensor(20 / 17))
    torch.testing.assert_close(weight[5:].sum() / 7 * 2, torch.tensor(8 / 5))
    add_weights(episodes, PPOOptions(), torch.tensor([20, 8]), 4, lambda x: x)
    assert (episodes.chunks[WEIGHT] == 1).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 5))
def test_minibatches_hold_the_same_chunks_for_any_number_of_ranks(counts, ranks, parts):
    counts = counts * ranks  # episodes of the iteration, a multiple of the ranks
    names = [(e, c) for e, count in enumerate(counts) for c in range(count)]
    one, total = number_chunks(torch.tensor([counts]), 0)
    assert one.tolist() == list(range(len(names)))
    assert total == len(names)
    alone = [{names[i] for i in rows.tolist()} for rows in minibatches(one, total, parts, seed=3, iteration=7, epoch=1)]
    assert sorted(x for part in alone for x in part) == names
    assert max(map(len, alone)) - min(map(len, alone)) <= 1

    together = [set() for _ in range(parts)]
    counts_GP = torch.tensor([counts[rank::ranks] for rank in range(ranks)])
    for rank in range(ranks):
        mine = [(e, c) for e in range(rank, len(counts), ranks) for c in range(counts[e])]
        numbers, everything = number_chunks(counts_GP, rank)
        assert everything == total
        for part, rows in zip(together, minibatches(numbers, total, parts, 3, 7, 1), strict=True):
            part |= {mine[i] for i in rows.tolist()}
    assert together == alone


def test_every_epoch_shuffles_anew():
    numbers = torch.arange(40)
    drawn = {
        tuple(minibatches(numbers, 40, 2, seed, iteration, epoch)[0].tolist())
        for seed in (0, 1)
        for iteration in (0, 1)
        for epoch in (0, 1)
    }
    assert len(drawn) == 8
