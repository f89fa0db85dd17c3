"""The options of PPO (torch-free)."""

from dataclasses import dataclass
from typing import Literal

_POSITIVE = (
    "learning_rate", "critic_learning_rate", "max_grad_norm", "epochs", "minibatches", "huber_delta", "log_ratio_clamp",
    "adam_eps", "ratio_tolerance",
)  # fmt: skip


@dataclass(frozen=True)
class PPOOptions:
    """How an iteration's episodes become an update. One decision is one action chunk.

    Raises:
        ValueError: for values outside the ranges given below; the message names the key.
    """

    gamma: float = 0.99
    """Discount, in [0, 1]."""
    gamma_per: Literal["chunk", "step"] = "chunk"
    """What `gamma` discounts: a whole chunk (as published), or each of its environment steps."""
    gae_lambda: float = 0.95
    """Lambda of the generalised advantage estimate, per chunk."""
    time_limit: Literal["terminal", "bootstrap"] = "terminal"
    """An episode that reaches its horizon ends there (horizons are part of these tasks, and the critic sees
    t / horizon), or goes on in the critic's mind (which then does not see t / horizon)."""
    normalise_advantages: bool = True
    """To mean 0 and standard deviation 1 over all valid chunks of all ranks."""
    average: Literal["chunks", "episodes"] = "chunks"
    """The loss is a mean over chunks, or about a mean over episodes of the mean over their chunks (long ones count no
    more than short ones)."""
    clip_low: float = 0.2
    """The ratio is clipped at 1 - clip_low ..."""
    clip_high: float = 0.2
    """... and at 1 + clip_high."""
    dual_clip: float | None = None
    """Bound of the loss of a chunk with negative advantage, times |A|; above 1."""
    log_ratio_clamp: float = 20.0
    """Log-ratios are clamped to +- this before exp."""
    value_clip: float | None = 0.2
    """Values count as moved by at most this much; none: no clipping."""
    huber_delta: float = 10.0
    """Error from which the value loss grows linearly."""
    value_weight: float = 1.0
    """Weight of the value loss. It matters only where actor and critic share parameters."""
    target_kl: float | None = 0.3
    """The update of an iteration ends before a step at which the mean KL (k3) to the sampling policy exceeds this."""
    epochs: int = 2
    """Passes over the iteration's chunks."""
    minibatches: int = 4
    """Optimiser steps per pass."""
    learning_rate: float = 3e-5
    """Of the actor."""
    critic_learning_rate: float = 1e-3
    """Of parameters with `critic` in their name."""
    critic_warmup: int = 2
    """Iterations at the beginning in which only the critic learns."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm, actor and critic each on their own."""
    adam_eps: float = 1e-5
    """Epsilon of AdamW."""
    weight_decay: float = 0.0
    """Of AdamW."""
    ratio_tolerance: float = 1e-3
    """Before the first step of an update the ratio must be 1; a larger error is warned of, and one above `clip_low`
    ends the run: sampling and learning then disagree about the policy."""

    def __post_init__(self) -> None:
        def require(key: str, holds: bool, what: str) -> None:
            if not holds:
                raise ValueError(f"ppo.{key} must be {what}, not {getattr(self, key)}")

        for key in _POSITIVE:
            require(key, getattr(self, key) > 0, "above 0")
        for key in ("gamma", "gae_lambda"):
            require(key, 0 <= getattr(self, key) <= 1, "in [0, 1]")
        for key in ("clip_low", "clip_high"):
            require(key, getattr(self, key) > 0, "above 0")
        require("dual_clip", self.dual_clip is None or self.dual_clip > 1, "above 1 (or null)")
        for key in ("value_clip", "target_kl"):
            require(key, getattr(self, key) is None or getattr(self, key) > 0, "above 0 (or null)")
        for key in ("value_weight", "weight_decay"):
            require(key, getattr(self, key) >= 0, "0 or more")
        require("critic_warmup", self.critic_warmup >= 0, "0 or more")
        for key, choices in {
            "gamma_per": ("chunk", "step"),
            "time_limit": ("terminal", "bootstrap"),
            "average": ("chunks", "episodes"),
        }.items():
            require(key, getattr(self, key) in choices, f"one of {', '.join(choices)}")
