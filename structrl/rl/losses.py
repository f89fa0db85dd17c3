"""Losses of the update: pure functions of tensors, no state, no randomness.

Shapes: B chunks of a minibatch. `valid` marks real rows; rows that only pad a rank's minibatch are False and take part
in nothing: they are zeroed *before* every exp, since inf * 0 is NaN in the backward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from structrl.rl.advantages import moments


@dataclass(frozen=True)
class PolicyLoss:
    """Per-chunk policy loss and what is worth watching about it, all [B] and 0 in invalid rows."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor  # 1 where the clipped branch decides
    dual_clipped: Tensor  # 1 where the dual clip decides
    kl_k1: Tensor  # -log ratio: unbiased, may be negative (CleanRL: old_approx_kl)
    kl_k3: Tensor  # ratio - 1 - log ratio: unbiased and never negative (CleanRL: approx_kl)


def clipped_policy_loss(
    log_prob_B: Tensor,
    old_log_prob_B: Tensor,
    advantage_B: Tensor,
    valid_B: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    log_ratio_clamp: float = 20.0,
) -> PolicyLoss:
    """PPO's clipped surrogate, one ratio per chunk, with asymmetric bounds and an optional dual clip.

    L = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)); for A < 0 at most `dual_clip` * |A|.

    Reference: PPO, arXiv 1707.06347; dual clip, arXiv 1912.09729; clip-higher, arXiv 2503.14476.
    """
    log_ratio = torch.where(valid_B, log_prob_B - old_log_prob_B, 0.0).clamp(-log_ratio_clamp, log_ratio_clamp)
    advantage = torch.where(valid_B, advantage_B, 0.0)
    ratio = log_ratio.exp()
    plain = -advantage * ratio
    clip = -advantage * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clip)
    dual_clipped = torch.zeros_like(valid_B)
    if dual_clip is not None:
        bound = dual_clip * advantage.abs()
        dual_clipped = (advantage < 0) & (loss > bound)
        loss = torch.where(dual_clipped, bound, loss)
    mask = valid_B.to(loss.dtype)
    return PolicyLoss(
        loss=loss * mask,  # finite everywhere by now, so a plain product is safe
        ratio=ratio.detach() * mask,
        clipped=(clip > plain).to(loss.dtype) * mask,
        dual_clipped=dual_clipped.to(loss.dtype) * mask,
        kl_k1=-log_ratio.detach() * mask,
        kl_k3=(ratio - 1 - log_ratio).detach() * mask,
    )


def decoupled_policy_loss(
    log_prob_B: Tensor,
    old_log_prob_B: Tensor,
    advantage_B: Tensor,
    valid_B: Tensor,
    version_B: Tensor,
    current: int,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """The clipped surrogate for chunks that older policies have sampled, [B], 0 in invalid rows.

    It clips around a proximal policy between the one that acted and the one that learns, nearer to the latter the
    older the chunk is, and weighs by the ratio of proximal to acting policy. With age a = current - version,
    log prox = old + max(a - 1, 0) / a (log_prob - old), without gradient. Nothing here samples with older policies:
    it is what an asynchronous trainer would need (decoupled PPO, arXiv 2110.00641; the interpolation is RLinf's).

    Args:
        version_B: int64, updates that the acting policy had seen; below `current`.
        current: of the policy that results from this update.

    Raises:
        ValueError: a chunk that is not older than `current`.
    """
    age_B = current - version_B
    if (age_B < 1).any():
        raise ValueError(f"chunks of policy version {int(version_B.max())} in the update that makes version {current}")
    log_ratio_B = torch.where(valid_B, log_prob_B.detach() - old_log_prob_B, 0.0)
    shift_B = (age_B - 1) / age_B * log_ratio_B
    proximal_B = torch.where(valid_B, old_log_prob_B, 0.0) + shift_B
    near = clipped_policy_loss(log_prob_B, proximal_B, advantage_B, valid_B, clip_low=clip_low, clip_high=clip_high)
    return near.loss * shift_B.exp()


def value_loss(
    value_B: Tensor,
    return_B: Tensor,
    old_value_B: Tensor,
    valid_B: Tensor,
    value_clip: float | None = 0.2,
    huber_delta: float = 10.0,
) -> Tensor:
    """Huber loss to the return; the worse of the value and the value moved at most `value_clip` from the old one. [B].

    Huber is e^2 / 2 below `huber_delta` and linear above. `value_clip=None` leaves the value unclipped.
    """
    value, target, old = (torch.where(valid_B, x, 0.0) for x in (value_B, return_B, old_value_B))
    loss = huber_loss(value, target, reduction="none", delta=huber_delta)
    if value_clip is not None:
        moved = old + (value - old).clamp(-value_clip, value_clip)
        loss = torch.maximum(loss, huber_loss(moved, target, reduction="none", delta=huber_delta))
    return loss


def explained_variance(value: Tensor, target: Tensor, total: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """1 - Var(target - value) / Var(target): 1 perfect, 0 no better than a constant; NaN for constant targets.

    `total` sums a tensor over ranks; by default there is one rank.
    """
    everything = torch.ones_like(target, dtype=torch.bool)
    both = total(torch.stack([moments(x, everything) for x in (target - value, target)]))
    error_variance, variance = both[:, 2] / both[:, 0] - (both[:, 1] / both[:, 0]).square()
    return torch.where(variance > 0, 1 - error_variance / variance, torch.nan)


def episode_weights(length_B: Tensor, horizon_B: Tensor, chunk: int) -> Tensor:
    """Weights with which a sum over chunks becomes a mean over episodes of the mean over their chunks (about). [B].

    Row b belongs to an episode of `length_B[b]` executed steps under a horizon of `horizon_B[b]`. Divide the weighted
    sum by the number of episodes. A partly executed last chunk counts in full, as in RLinf.
    """
    return (horizon_B / length_B) / (horizon_B / chunk).ceil()
