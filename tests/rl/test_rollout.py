"""Whole episodes: none dropped, repeated or mixed up, whatever the number of environments."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structrl import keys
from structrl.rl.rollout import NonFiniteError, run_episodes
from structrl.seeding import Stream
from structrl.sims.base import Start
from tests.rl.fake import A, FakeEnv, H, code, length


def starts_of(episodes, tasks=2):
    return [Start(e % tasks, -1, (5, Stream.START, 3, e)) for e in episodes]


def coded(td, chunk, episode):
    """Acts by what it observes, and checks that it is told where it is."""
    state = td[keys.STATE]
    assert torch.equal(state[:, 2].long(), chunk)
    code_B = 10_000 * state[:, 0] + 100 * state[:, 1] + state[:, 2]
    td["mine"] = torch.stack([code_B, episode.float()], 1)
    return td.set(keys.ACTION, code_B[:, None, None].expand(-1, H, A).clone())


def run(num_envs, numbers, **kwargs):
    return run_episodes(FakeEnv(num_envs), coded, starts_of(numbers), **kwargs)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=17))
def test_every_chunk_is_where_it_belongs(numbers):
    results = [run(num_envs, numbers) for num_envs in (1, 3, 8)]
    for out in results:
        expected = []
        for row, e in enumerate(numbers):
            chunks, steps = length(e % 2, e)
            expected += [(row, c, code(e % 2, e, c)) for c in range(chunks)]
            assert out.table["length"][row] == steps
            assert out.table["chunks"][row] == chunks
            assert out.table["return"][row] == sum(code(e % 2, e, c) for c in range(chunks))
            assert out.table["success"][row] == (e % 2 == 0)
            assert out.table["truncated"][row] == (e % 2 == 1)
            assert out.table[keys.START][row].tolist() == [e % 2, -1, 5, Stream.START, 3, e]
            assert out.final[keys.STATE][row].tolist() == [e % 2, e, chunks]
        got = torch.stack([out.chunks["episode"], out.chunks["chunk"], out.chunks["mine"][:, 0]], 1)
        assert got.tolist() == [list(map(float, row)) for row in expected]
        assert torch.equal(out.chunks["mine"][:, 1].long(), out.chunks["episode"])
        assert torch.equal(out.chunks["next", "reward"].squeeze(-1), out.chunks["mine"][:, 0])
        assert torch.equal(out.chunks["action"][:, 0, 0], out.chunks["mine"][:, 0])
        parts = out.table["reward_parts"]
        torch.testing.assert_close(parts["subtask"] + parts["terminal"], out.table["return"])
    for other in results[1:]:
        assert (other.chunks == results[0].chunks).all()
        assert (other.table == results[0].table).all()
        assert (other.final == results[0].final).all()


def test_hooks_see_running_environments_and_their_outcome():
    seen, progress = [], []

    def on_chunk(td, chunk, episode):
        for env, e, c, reward in zip(td["env"], episode, chunk, td["next", "reward"], strict=True):
            seen.append((int(e), int(c), int(env), float(reward)))

    numbers = list(range(7))
    run(3, numbers, on_chunk=on_chunk, progress=lambda *a: progress.append(a))
    assert sorted((e, c) for e, c, _, _ in seen) == [(e, c) for e in numbers for c in range(length(e % 2, e)[0])]
    assert all(reward == code(e % 2, e, c) for e, c, _, reward in seen)
    for e in numbers:
        assert len({env for ep, _, env, _ in seen if ep == e}) == 1, "an episode moved to another environment"
    assert progress[-1] == (7, sum(length(e % 2, e)[1] for e in numbers))
    assert progress == sorted(progress)


def test_two_lists_on_one_env_do_not_touch():
    env = FakeEnv(4)
    first = run_episodes(env, coded, starts_of([1, 2, 3, 4, 5]))
    second = run_episodes(env, coded, starts_of([9, 8]))
    assert second.table[keys.START][:, 5].tolist() == [9, 8]
    assert (run_episodes(env, coded, starts_of([1, 2, 3, 4, 5])).chunks == first.chunks).all()


@pytest.mark.parametrize("quantity", ["state", "reward", "action"])
def test_nan_names_quantity_task_and_episode(quantity):
    env = FakeEnv(2)
    act = coded
    if quantity == "action":

        def act(td, chunk, episode):
            out = coded(td, chunk, episode)
            out[keys.ACTION][(out["mine"][:, 0] == code(1, 3, 1))] = torch.nan
            return out

    else:
        env.poison = (quantity, 1, 3, 1)
    with pytest.raises(NonFiniteError, match=rf"{quantity}.* not finite in task 'task_1', episode 2 .*chunk 1"):
        run_episodes(env, act, starts_of([0, 1, 3, 4]))


def test_no_starts():
    with pytest.raises(ValueError, match="empty"):
        run(2, [])
