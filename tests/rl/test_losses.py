"""Vectors V9 to V11 and V13 of the flow-RL reference notes (float64) and what they leave open."""

import pytest
import torch
from torch import tensor

from structrl.rl.losses import (
    clipped_policy_loss,
    decoupled_policy_loss,
    episode_weights,
    explained_variance,
    value_loss,
)

LOG_RATIO = tensor([0.0, 0.3, -0.4, 1.5, 0.1, -0.05], dtype=torch.float64)
ADVANTAGE = tensor([1.0, 1.0, -1.0, -2.0, -0.5, 0.7], dtype=torch.float64)
VALID = tensor([True, True, True, True, True, False])


def v10(**kwargs):
    old = tensor(-3.0).double().expand(6)
    return clipped_policy_loss(old + LOG_RATIO, old, ADVANTAGE, VALID, clip_low=0.2, clip_high=0.28, **kwargs)


def close(actual, expected, tol=1e-6):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=tol, rtol=0)


def test_v10_clipped_policy_loss():
    out = v10()
    close(out.ratio, [1, 1.349859, 0.670320, 4.481689, 1.105171, 0])
    close(out.loss, [-1, -1.28, 0.8, 8.963378, 0.552585, 0])
    close(out.loss.sum() / 5, 1.607193)
    close(out.clipped.sum() / 5, 0.4)
    close(out.kl_k1.sum() / 5, -0.3)
    assert (out.kl_k3 >= 0).all()


def test_v10_dual_clip():
    out = v10(dual_clip=3.0)
    close(out.loss[3], 6.0)
    close(out.loss.sum() / 5, 1.014517)
    close(out.dual_clipped.sum() / 5, 0.2)


def test_masked_rows_poison_nothing():
    log_prob = tensor([0.1, 900.0, float("nan")], requires_grad=True)
    out = clipped_policy_loss(
        log_prob, torch.zeros(3), tensor([1.0, -1.0, float("inf")]), tensor([True, False, False]), log_ratio_clamp=1e9
    )
    out.loss.sum().backward()
    torch.testing.assert_close(log_prob.grad, tensor([-1.1051709, 0.0, 0.0]))
    assert torch.isfinite(out.kl_k3).all()


def test_clamp_keeps_a_huge_ratio_finite():
    log_prob = tensor([500.0], requires_grad=True)
    out = clipped_policy_loss(log_prob, torch.zeros(1), tensor([-1.0]), tensor([True]))
    out.loss.sum().backward()
    assert torch.isfinite(out.loss).all()
    assert torch.isfinite(log_prob.grad).all()


def test_v11_value_loss():
    value, target, old = tensor([[0.5, 1.2, -0.3, 2], [1, 1, 0, 0.5], [0.4, 0.7, -0.2, 1]], dtype=torch.float64)
    valid = torch.ones(4, dtype=torch.bool)
    loss = value_loss(value, target, old, valid, value_clip=0.2, huber_delta=10)
    close(loss, [0.125, 0.020, 0.045, 1.125])
    close(loss.mean(), 0.328750)
    small = value_loss(value, target, old, valid, value_clip=0.2, huber_delta=0.5)
    close(small, [0.125, 0.020, 0.045, 0.625])
    close(small.mean(), 0.203750)
    close(explained_variance(value, target), -2.530909)
    assert explained_variance(value, torch.ones(4)).isnan()
    # the second entry is 0.02 without the clip, and 0.005 = (1 - 0.9)^2 / 2 in its clipped branch
    close(value_loss(value, target, old, valid, value_clip=None), [0.125, 0.020, 0.045, 1.125])
    # clipping binds where the value overshot the target's side: 0.5 (1 - 0.6)^2 > 0.5 (1 - 0.9)^2
    tight = value_loss(tensor([0.9]), tensor([1.0]), tensor([0.4]), tensor([True]), value_clip=0.2)
    torch.testing.assert_close(tight, tensor([0.08]))
    masked = value_loss(value, target, old, tensor([True, False, True, True]))
    assert masked[1] == 0


def test_v9_weights_per_episode():
    """Two episodes of 5 chunks of 4 under 20 steps; the first ends after 10 steps, inside its third chunk."""
    loss = torch.arange(0.1, 1.05, 0.1, dtype=torch.float64).reshape(5, 2)
    flat = torch.cat([loss[:3, 0], loss[:, 1]])  # valid chunks only
    length = tensor([10.0] * 3 + [20.0] * 5, dtype=torch.float64)
    weight = episode_weights(length, torch.full((8,), 20.0, dtype=torch.float64), chunk=4)
    close((weight * flat).sum() / 2, 0.48)
    close(flat.mean(), 0.4875)
    close(weight[:3].sum(), 0.6 * 2)  # 1.2 and 1.0 where an exact mean over chunks has 1 and 1
    close(weight[3:].sum(), 0.5 * 2)


def test_v13_decoupled_policy_loss():
    one = torch.ones(1, dtype=torch.float64)
    log_prob = (-1.0 * one).requires_grad_()
    valid = torch.ones(1, dtype=torch.bool)
    version = torch.tensor([3])
    loss = decoupled_policy_loss(log_prob, -1.3 * one, one, valid, version, current=6)
    close(loss, [-1.349859])
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    close(gradient, [-1.349859])  # of the ratio alone: the proximal policy is a constant
    # a chunk of the policy before has itself as proximal policy: that is PPO
    fresh = decoupled_policy_loss(log_prob, -1.3 * one, one, valid, torch.tensor([5]), current=6)
    close(fresh, clipped_policy_loss(log_prob, -1.3 * one, one, valid).loss)
    masked = decoupled_policy_loss(log_prob, one * torch.inf, one, ~valid, version, current=6)
    assert masked.item() == 0
    with pytest.raises(ValueError, match="version 6"):
        decoupled_policy_loss(log_prob, log_prob, one, valid, torch.tensor([6]), current=6)
