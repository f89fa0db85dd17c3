"""Vector V8 of the flow-RL reference notes, and TorchRL's recursion against a plain twin."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from structrl.rl.advantages import chunk_gamma, gae, moments, normalise

REWARD = tensor([[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.float64)
VALUE = tensor([[0.30, 0.40, 0.60, 0.55, 0.50, 0.45], [0.10, 0.15, 0.20, 0.25, 0.30, 0.35]], dtype=torch.float64)
NEVER = torch.zeros(2, 5, dtype=torch.bool)


def done_at(*where):
    done = NEVER.clone()
    for env, chunk in where:
        done[env, chunk] = True
    return done


def v8(done, reward=REWARD, terminated=None):
    return gae(reward, VALUE[:, :5], VALUE[:, 1:], done, done if terminated is None else terminated, 0.99, 0.95)


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


def test_v8_advantages_and_returns():
    advantage, target = v8(done_at((0, 2)))
    close(
        advantage,
        [[0.632273, 0.570200, 0.4, -0.106257, -0.0545], [0.211142, 0.172931, 0.132835, 0.090733, 0.0465]],
    )
    close(target, [[0.932273, 0.9702, 1.0, 0.443743, 0.4455], [0.311142, 0.322931, 0.332835, 0.340733, 0.3465]])


def test_v8_normalised_over_valid_chunks_only():
    advantage, _ = v8(done_at((0, 2)))
    valid = torch.ones(2, 5, dtype=torch.bool)
    valid[0, 3:] = False
    normal = normalise(advantage, moments(advantage, valid))
    close(normal[0, :3], [1.564080, 1.286843, 0.526680])
    close(normal[1], [-0.316817, -0.487477, -0.666559, -0.854596, -1.052155])
    everything = normalise(advantage, moments(advantage, torch.ones_like(valid)))
    close(everything[0], [1.690799, 1.442499, 0.761679, -1.263408, -1.056373])
    close(everything[1], [0.006224, -0.146623, -0.307013, -0.475423, -0.652361])
    # ranks add their moments up; the result is that of one rank
    split = moments(advantage[0], valid[0]) + moments(advantage[1], valid[1])
    close(normalise(advantage, split), normal)


def test_v8_time_limit_terminal_and_bootstrapped():
    terminal, _ = v8(done_at((0, 2), (0, 4), (1, 4)))
    close(terminal[0], [0.632273, 0.5702, 0.4, -0.52525, -0.5])
    close(terminal[1], [-0.059964, -0.115326, -0.173659, -0.235150, -0.3])
    # truncation with V(final observation) = 0.32
    next_value = VALUE[:, 1:].clone()
    next_value[1, 4] = 0.32
    done = done_at((0, 2), (0, 4), (1, 4))
    boot, _ = gae(REWARD, VALUE[:, :5], next_value, done, done_at((0, 2), (0, 4)), 0.99, 0.95)
    close(boot[1], [0.187904, 0.148223, 0.106564, 0.062800, 0.016800])


def test_one_entry_and_equal_entries_stay_finite():
    one = tensor([[3.0]])
    assert normalise(one, moments(one, tensor([[True]]))).item() == 0
    same = torch.full((1, 4), 2.0)
    assert torch.equal(normalise(same, moments(same, torch.ones(1, 4, dtype=torch.bool))), torch.zeros(1, 4))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 7), st.integers(0, 2**31), st.sampled_from(["chunk", "step"]))
def test_twin(episodes, chunks, seed, per):
    g = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(3, episodes, chunks, generator=g, dtype=torch.float64)
    done = torch.rand(episodes, chunks, generator=g) < 0.3
    terminated = done & (torch.rand(episodes, chunks, generator=g) < 0.5)
    steps = torch.randint(1, 9, (episodes, chunks), generator=g)
    gamma = chunk_gamma(0.97, steps, per)
    advantage, target = gae(reward, value, next_value, done, terminated, gamma, 0.9)
    for p in range(episodes):
        later = 0.0
        for t in reversed(range(chunks)):
            discount = 0.97 if per == "chunk" else 0.97 ** int(steps[p, t])
            boot = 0.0 if terminated[p, t] else discount * float(next_value[p, t])
            later = float(reward[p, t]) + boot - float(value[p, t]) + (0.0 if done[p, t] else discount * 0.9 * later)
            assert abs(later - float(advantage[p, t])) < 1e-5
            assert abs(later + float(value[p, t]) - float(target[p, t])) < 1e-5
