"""Advantages of whole episodes. Time steps are chunks.

Shapes: P episodes, L chunks of the longest one. Episodes never cross an iteration, so row p starts at its first chunk
and ends in `done`; entries after that are padding.
"""

import torch
from torch import Tensor
from torchrl.objectives.value.functional import generalized_advantage_estimate


def gae(
    reward_PL: Tensor,
    value_PL: Tensor,
    next_value_PL: Tensor,
    done_PL: Tensor,
    terminated_PL: Tensor,
    gamma: float | Tensor = 0.99,
    lmbda: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and returns, both [P, L] (arXiv 1506.02438).

    delta = r + gamma V' (1 - terminated) - V;  A = delta + gamma lambda (1 - done) A'. A chunk that is done but not
    terminated bootstraps from its `next_value`. `gamma` may be a tensor [P, L]: one discount per chunk.

    TorchRL's loop does the recursion. Its `gamma` is declared scalar but only multiplies element-wise; test_advantages
    holds the per-chunk use to a plain-Python twin.
    """
    gamma = gamma.unsqueeze(-1) if isinstance(gamma, Tensor) else gamma
    advantage, target = generalized_advantage_estimate(
        gamma,
        lmbda,
        *(x.unsqueeze(-1) for x in (value_PL, next_value_PL, reward_PL, done_PL, terminated_PL)),
    )
    return advantage.squeeze(-1), target.squeeze(-1)


def chunk_gamma(gamma: float, steps: Tensor, per: str) -> float | Tensor:
    """The discount of a chunk: `gamma` (`per="chunk"`), or `gamma ** steps` executed (`per="step"`).

    Raises:
        ValueError: for another `per`.
    """
    if per == "chunk":
        return gamma
    if per == "step":
        return torch.as_tensor(gamma, dtype=torch.float32) ** steps
    raise ValueError(f"gamma_per is '{per}'; one of: chunk, step")


def moments(x: Tensor, valid: Tensor) -> Tensor:
    """Count, sum and sum of squares of the valid entries, [3] float64: add them up over ranks."""
    y = torch.where(valid, x, 0.0).double()
    return torch.stack([valid.sum().double(), y.sum(), y.square().sum()])


def normalise(x: Tensor, moments_3: Tensor, eps: float = 1e-5) -> Tensor:
    """(x - mean) / (std + eps) with the unbiased std, from `moments`; a single entry is only centred, to 0."""
    count, total, squares = moments_3
    mean = total / count
    variance = (squares - count * mean.square()).clamp(min=0.0) / (count - 1).clamp(min=1)
    return ((x - mean) / (variance.sqrt() + eps)).to(x.dtype)
