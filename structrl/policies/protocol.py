"""The protocol of a vision-language-action policy: encode once per chunk, then velocities, and a value.

Shapes: B batch, H executed chunk rows, A real action dims, M >= H model rows, D >= A model dims, R reward state.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from structrl import keys

Direction = Literal["noise_to_data", "data_to_noise"]


@dataclass(frozen=True)
class VLASpec:
    """What a policy must know of the environment it acts in.

    Raises:
        ValueError: for bounds that are not finite, not ordered, or not one per action dim.
    """

    observation: dict[str, tuple[int, ...]]
    """Name (below `observation`) -> shape without the batch axis."""
    action_dim: int
    """A."""
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    """Bounds in environment units, one per action dim."""
    chunk: int
    """H, environment steps executed per policy call."""
    reward_state_dim: int
    """R, width of what a critic may see of the reward's state; 0 without a reward."""
    commands: tuple[str, ...]
    """The instruction of each task, by task row."""

    def __post_init__(self) -> None:
        bounds = list(zip(self.action_low, self.action_high, strict=True))
        if len(bounds) != self.action_dim:
            raise ValueError(f"{len(bounds)} action bounds for {self.action_dim} action dims")
        for low, high in bounds:
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"action bounds must be finite with low < high, not [{low}, {high}]")
        if not self.commands:
            raise ValueError("a VLA needs the command of at least one task")


def env_spec(env: Any) -> VLASpec:
    """The spec of a chunk environment, as `structrl.envs.make_env` returns it.

    Raises:
        ValueError: if a task has no command; the message names its file.
    """
    base = getattr(env, "base_env", env)
    for task in base.simulator.tasks:
        if not task.command:
            raise ValueError(f"{task.path}: the policy reads the task's `command`, and this file has none; add one")
    specs = env.observation_spec
    width = specs[keys.REWARD_STATE].shape[-1] if keys.REWARD_STATE in specs.keys() else 0  # noqa: SIM118 - a Composite
    return VLASpec(
        observation={name: tuple(shape) for name, (shape, _) in base.simulator.observation.items()},
        action_dim=len(base.simulator.action.low),
        action_low=tuple(base.simulator.action.low),
        action_high=tuple(base.simulator.action.high),
        chunk=base.chunk,
        reward_state_dim=width,
        commands=tuple(task.command for task in base.simulator.tasks),
    )


class VLA(nn.Module, ABC):
    """A flow policy over action chunks.

    Call it as `vla("encode", ...)`, `vla("velocity", ...)`, `vla("value", ...)`: distributed wrappers hook `forward`
    only. Parameters of the value head have "critic" in their name; a warm start loads the rest strictly. No dropout:
    the likelihood of a stored chain must not depend on the mode of the module.

    Args:
        spec: the environment.
        rows: M, the model's action horizon.
        dims: D, the model's (padded) action width.

    Raises:
        ValueError: if the model's rows or dims are fewer than the environment's.
    """

    direction: Direction = "noise_to_data"
    feature_width: int = 0
    """F, width of `features`; 0: there are none."""
    action_low: Tensor
    action_high: Tensor
    scored: Tensor
    """bool [M, D]: entries that reach the environment, hence take noise and are scored."""

    def __init__(self, spec: VLASpec, rows: int, dims: int):
        super().__init__()
        if rows < spec.chunk or dims < spec.action_dim:
            raise ValueError(
                f"the policy predicts {rows} rows of {dims} dims, "
                f"the environment executes {spec.chunk} of {spec.action_dim}"
            )
        self.spec, self.rows, self.dims = spec, rows, dims
        low, high = (torch.tensor(bound, dtype=torch.float32) for bound in (spec.action_low, spec.action_high))
        # of the environment, not of the policy: hence not in the checkpoint
        self.register_buffer("action_low", low, persistent=False)
        self.register_buffer("action_high", high, persistent=False)
        scored_MD = torch.zeros(rows, dims, dtype=torch.bool)
        scored_MD[: spec.chunk, : spec.action_dim] = True
        self.register_buffer("scored", scored_MD, persistent=False)

    @abstractmethod
    def encode(self, observation: TensorDictBase, task_B: Tensor) -> TensorDict:
        """Context of batch [B] from observations and task rows (int64), reused by every denoising step."""

    @abstractmethod
    def velocity(self, context: TensorDict, x_BMD: Tensor, t_B: Tensor) -> Tensor:
        """Velocity [B, M, D] of the noisy chunk x at time t, in this model's `direction`."""

    @abstractmethod
    def value(self, context: TensorDict, reward_state_BR: Tensor) -> Tensor:
        """Value [B, 1]. Sends no gradient into what `encode` and `velocity` use, unless the user asks for it."""

    def features(self, context: TensorDict) -> Tensor:
        """What of the context a small head of the actor may read, [B, F]; wanted by `flow.sampler: learned`."""
        raise NotImplementedError(f"{type(self).__name__} offers no features")

    def shards(self) -> list[nn.Module]:
        """Large parts that FSDP2 is to gather one at a time (transformer layers); each is only ever called."""
        return []

    def forward(self, mode: str, *args: Any) -> Any:
        """`encode`, `velocity`, `value` or `features`, by name.

        Raises:
            ValueError: for any other mode.
        """
        if mode not in ("encode", "velocity", "value", "features"):
            raise ValueError(f"mode is 'encode', 'velocity', 'value' or 'features', not {mode!r}")
        return getattr(self, mode)(*args)

    def to_env(self, x_BMD: Tensor) -> Tensor:
        """Action [B, H, A] in environment units: [-1, 1] -> [low, high], clipped there.

        Clipping belongs to the environment as far as the likelihood is concerned: the chain keeps the unclipped values.
        """
        x_BHA = x_BMD[:, : self.spec.chunk, : self.spec.action_dim]
        action_BHA = self.action_low + (self.action_high - self.action_low) * (x_BHA + 1) / 2
        return action_BHA.clamp(self.action_low, self.action_high)  # last, so that rounding cannot leave the bounds

    def from_env(self, action_BHA: Tensor) -> Tensor:
        """Model chunk [B, M, D] of an action in environment units, at most M rows; the rest is 0."""
        H, A = action_BHA.shape[1:]
        x_BHA = 2 * (action_BHA - self.action_low) / (self.action_high - self.action_low) - 1
        return nn.functional.pad(x_BHA, (0, self.dims - A, 0, self.rows - H))
