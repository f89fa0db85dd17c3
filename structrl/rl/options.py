"""The options of PPO and GRPO (torch-free)."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

_POSITIVE = (
    "learning_rate", "critic_learning_rate", "max_grad_norm", "epochs", "minibatches", "huber_delta", "log_ratio_clamp",
    "adam_eps", "ratio_tolerance", "clip_low", "clip_high", "max_rounds",
)  # fmt: skip
_NOT_NEGATIVE = (
    "value_weight", "weight_decay", "kl_weight", "entropy_weight", "critic_warmup", "std_floor", "min_return_std",
    "max_skipped_steps",
)  # fmt: skip
_POSITIVE_OR_NULL = ("value_clip", "target_kl", "micro_batch")
_SHARES = ("gamma", "gae_lambda", "success_low", "success_high")
_CHOICES = {
    "gamma_per": ("chunk", "step"),
    "time_limit": ("terminal", "bootstrap"),
    "average": ("chunks", "episodes"),
    "dynamic_sampling": ("off", "mask", "refill"),
    "keep_if": ("success", "return_std"),
}


@dataclass(frozen=True)
class UpdateOptions:
    """The clipped update that PPO and GRPO share. One decision is one action chunk.

    Raises:
        ValueError: for values outside the ranges given below; the message names the key.
    """

    key: ClassVar[str] = "update"  # of the config, for messages

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
    kl_weight: float = 0.0
    """Weight of the KL to the policy that training starts from, exact and summed over a chunk's stochastic steps.
    Above 0 a frozen copy of that policy is kept, also in the checkpoints."""
    entropy_weight: float = 0.0
    """Weight of the entropy of the denoising noise, mean over entries; only with `flow.sampler: learned`."""
    target_kl: float | None = 0.3
    """The update of an iteration ends before a step at which the mean KL (k3) to the sampling policy exceeds this."""
    epochs: int = 2
    """Passes over the iteration's chunks."""
    minibatches: int = 4
    """Optimiser steps per pass."""
    micro_batch: int | None = None
    """Chunks per forward and backward pass, where a minibatch does not fit in memory; null: the whole minibatch. It
    changes the result by no more than floating error."""
    learning_rate: float = 3e-5
    """Of the actor."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm, actor and critic each on their own."""
    adam_eps: float = 1e-5
    """Epsilon of AdamW."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_skipped_steps: int = 0
    """Optimiser steps of an iteration whose loss or gradient is not finite: so many are left out, warned of and counted
    (`ppo/skipped_steps`) before one ends the run. 0: the first one does."""
    ratio_tolerance: float = 1e-3
    """Before the first step of an update the ratio must be 1; a larger error is warned of, and one above `clip_low`
    ends the run: sampling and learning then disagree about the policy. With `flow.precision: bf16`, whose
    rounding is above any such tolerance, the root mean square of the log-ratio must stay well below the clip range."""
    reward_weights: dict[str, float] = field(default_factory=dict)
    """Weights of the reward's components (`subtask`, `terminal`, and what `model.reward_hook` adds) in the reward that
    advantages are computed from; a component that is not listed weighs 1."""

    def __post_init__(self) -> None:
        def require(name: str, holds: bool, what: str) -> None:
            if not holds:
                raise ValueError(f"{self.key}.{name} must be {what}, not {getattr(self, name)}")

        def given(names: Any) -> list[str]:
            return [name for name in names if hasattr(self, name)]

        for name in given(_POSITIVE):
            require(name, getattr(self, name) > 0, "above 0")
        for name in given(_NOT_NEGATIVE):
            require(name, getattr(self, name) >= 0, "0 or more")
        for name in given(_POSITIVE_OR_NULL):
            require(name, getattr(self, name) is None or getattr(self, name) > 0, "above 0 (or null)")
        for name in given(_SHARES):
            require(name, 0 <= getattr(self, name) <= 1, "in [0, 1]")
        for name in given(_CHOICES):
            require(name, getattr(self, name) in _CHOICES[name], f"one of {', '.join(_CHOICES[name])}")
        require("dual_clip", self.dual_clip is None or self.dual_clip > 1, "above 1 (or null)")


@dataclass(frozen=True)
class PPOOptions(UpdateOptions):
    """How an iteration's episodes become an update of actor and critic.

    Raises:
        ValueError: for values outside the ranges given below; the message names the key.
    """

    key: ClassVar[str] = "ppo"

    gamma: float = 0.99
    """Discount, in [0, 1]."""
    gamma_per: Literal["chunk", "step"] = "chunk"
    """What `gamma` discounts: a whole chunk (as published), or each of its environment steps."""
    gae_lambda: float = 0.95
    """Lambda of the generalised advantage estimate, per chunk."""
    time_limit: Literal["terminal", "bootstrap"] = "terminal"
    """An episode that reaches its horizon ends there (horizons are part of these tasks, and the critic sees
    t / horizon), or goes on in the critic's mind (which then sees nothing that tells the time)."""
    normalise_advantages: bool = True
    """To mean 0 and standard deviation 1 over all valid chunks of all ranks."""
    value_clip: float | None = 0.2
    """Values count as moved by at most this much; none: no clipping."""
    huber_delta: float = 10.0
    """Error from which the value loss grows linearly."""
    value_weight: float = 1.0
    """Weight of the value loss. It matters only where actor and critic share parameters."""
    critic_learning_rate: float = 1e-3
    """Of parameters with `critic` in their name."""
    critic_warmup: int = 2
    """Iterations at the beginning in which only the critic learns."""


@dataclass(frozen=True)
class GRPOOptions(UpdateOptions):
    """How groups of episodes that share a start become an update of the actor; there is no critic.

    Raises:
        ValueError: for values outside the ranges given below; the message names the key.
    """

    key: ClassVar[str] = "grpo"

    average: Literal["chunks", "episodes"] = "episodes"
    """As in PPO; by default episodes count alike, as in SimpleVLA-RL."""
    clip_high: float = 0.28
    """Clip-higher (DAPO, arXiv 2503.14476)."""
    group_size: int = 8
    """G, episodes that start from one state; at least 2."""
    std_floor: float = 0.25
    """A = (R - mean) / max(std, std_floor * beta) over the group's valid members, R the return and beta that of the
    reward: a group whose returns hardly differ is not blown up."""
    dynamic_sampling: Literal["off", "mask", "refill"] = "off"
    """What happens to groups that `keep_if` rejects: nothing; they take no part in the update (`mask`); or further
    groups are run until enough are kept (`refill`, as in SimpleVLA-RL)."""
    keep_if: Literal["success", "return_std"] = "success"
    """A group is kept if its share of successes lies in [success_low, success_high], or if the standard deviation of
    its returns is at least `min_return_std` (groups without any success can then still teach subtasks)."""
    success_low: float = 0.1
    success_high: float = 0.9
    min_return_std: float = 0.05
    max_rounds: int = 4
    """With `refill`: at most so many times `data.episodes_per_iteration` episodes are run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 2:
            raise ValueError(f"grpo.group_size must be 2 or more, not {self.group_size}")
        if self.success_low > self.success_high:
            raise ValueError(f"grpo.success_low {self.success_low} is above grpo.success_high {self.success_high}")
