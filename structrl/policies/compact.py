"""CompactVLA: the embedded default, 0.6 M parameters, fast enough to learn on a CPU.

Shapes: B batch, T tasks, O what is observed (proprioception, object-state tokens, image features), W width,
H x A action chunk, R reward state.
"""

import math
from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from structrl.policies.images import WIDTH, ImageEncoder
from structrl.policies.protocol import VLA, VLASpec
from structrl.policies.text import ByteEncoder, MiniLMEncoder

TEXT_WIDTH = 64
TIME_FEATURES = 16
CRITIC_TASK_WIDTH = 16


class CompactVLA(VLA):
    """Instruction, proprioception, object-state tokens and pictures -> one context vector -> residual action expert.

    The expert predicts the *clean chunk* x^ (on the same data this learns better than predicting v); the velocity is
    v = (x^ - x) / max(1 - t, 0.1). The critic is a tower of its own on the raw observations and the task row; of
    pictures it takes the actor's features, detached (a second tower of convolutions would cost as much as the first).
    So the value loss sends no gradient into the actor, unless it is asked to, and the actor never sees `reward_state`.

    Args:
        spec: the environment.
        width: W, of the context and the expert.
        depth: residual blocks of the expert.
        image_channels: of the image encoder, one per camera.
        text: `bytes` trains a small byte-level encoder with the policy; `minilm` uses frozen all-MiniLM-L6-v2.
        critic_sees: `subtasks` adds `reward_state` to the critic's input (privileged, training only), which makes
            future credit predictable; `observation` does not.
        critic_reads: of the observation: `own`, the raw one and the task row; `prefix`, the actor's context, what the
            prefix of a large VLA is; `expert`, the action expert's last features at x = 0, t = 0 (a fixed point, so
            that rollout and update see the same).
        critic_detached: the value loss sends no gradient into what the critic reads of the actor.

    Raises:
        ValueError: for an observation that this policy cannot read, `subtasks` without a reward state, or gradients
            into an actor of which the critic reads nothing.
    """

    direction = "noise_to_data"
    frequencies: Tensor

    def __init__(
        self,
        spec: VLASpec,
        width: int = 256,
        depth: int = 3,
        image_channels: int = 32,
        text: Literal["bytes", "minilm"] = "bytes",
        critic_sees: Literal["subtasks", "observation"] = "subtasks",
        critic_reads: Literal["own", "prefix", "expert"] = "own",
        critic_detached: bool = True,
    ):
        super().__init__(spec, rows=spec.chunk, dims=spec.action_dim)
        self.cameras = [name for name in spec.observation if name.startswith("images.")]
        if unreadable := sorted(set(spec.observation) - {"state", "tokens", *self.cameras}):
            raise ValueError(
                "CompactVLA reads observation.state, observation.tokens and observation.images.*, not "
                + ", ".join(unreadable)
            )
        if text not in ("bytes", "minilm"):
            raise ValueError(f"text is 'bytes' or 'minilm', not {text!r}")
        if critic_sees not in ("subtasks", "observation"):
            raise ValueError(f"critic_sees is 'subtasks' or 'observation', not {critic_sees!r}")
        if critic_sees == "subtasks" and spec.reward_state_dim == 0:
            raise ValueError("critic_sees='subtasks' needs an environment with a structured reward; use 'observation'")
        if critic_reads not in ("own", "prefix", "expert"):
            raise ValueError(f"critic_reads is 'own', 'prefix' or 'expert', not {critic_reads!r}")
        if critic_reads == "own" and not critic_detached:
            raise ValueError("critic_detached has no effect with critic_reads 'own'; use 'prefix' or 'expert'")
        self.critic_sees, self.feature_width = critic_sees, width
        self.critic_reads, self.critic_detached = critic_reads, critic_detached
        self.observed = [name for name in ("state", "tokens") if name in spec.observation]
        self.images = nn.ModuleList(ImageEncoder(spec.observation[name], image_channels) for name in self.cameras)
        observed_width = sum(math.prod(spec.observation[name]) for name in self.observed)
        observed_width += len(self.images) * WIDTH
        chunk_width = self.rows * self.dims

        self.text = (ByteEncoder if text == "bytes" else MiniLMEncoder)(spec.commands, TEXT_WIDTH)
        self.encoder = _mlp(observed_width + TEXT_WIDTH, width, width)
        self.chunk_in = nn.Linear(chunk_width, width)
        self.register_buffer("frequencies", math.pi * torch.logspace(0, 1.5, TIME_FEATURES // 2), persistent=False)
        self.time = _mlp(TIME_FEATURES, width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.chunk_out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, chunk_width))

        reward_width = spec.reward_state_dim if critic_sees == "subtasks" else 0
        read_width = width
        if critic_reads == "own":
            self.critic_task = nn.Embedding(len(spec.commands), CRITIC_TASK_WIDTH)
            read_width = observed_width + CRITIC_TASK_WIDTH
        head = nn.Linear(width, 1)
        nn.init.normal_(head.weight, std=0.02)  # first values near 0
        self.critic = nn.Sequential(_mlp(read_width + reward_width, width, width), nn.SiLU(), head)

    def shards(self) -> list[nn.Module]:
        """The residual blocks of the expert."""
        return list(self.blocks)

    def encode(self, observation: TensorDictBase, task_B: Tensor) -> TensorDict:
        """Context: `encoded` [B, W] for the expert; `observed` [B, O] (detached) and `task` [B] for the critic."""
        parts = [observation[name].flatten(1).float() for name in self.observed]
        parts += [
            encoder(observation[tuple(name.split("."))])
            for name, encoder in zip(self.cameras, self.images, strict=True)
        ]
        observed_BO = torch.cat(parts, -1)
        encoded_BW = self.encoder(torch.cat([observed_BO, self.text()[task_B]], -1))
        return TensorDict(
            {"encoded": encoded_BW, "observed": observed_BO.detach(), "task": task_B}, batch_size=[len(task_B)]
        )

    def features(self, context: TensorDict) -> Tensor:
        """The encoded observation [B, W]."""
        return context["encoded"]

    def velocity(self, context: TensorDict, x_BMD: Tensor, t_B: Tensor) -> Tensor:
        """Velocity [B, H, A] towards the data."""
        clean_BMD = self.chunk_out(self._expert(context["encoded"], x_BMD, t_B)).view_as(x_BMD)
        return (clean_BMD - x_BMD) / (1 - t_B).clamp(min=0.1)[:, None, None]

    def _expert(self, encoded_BW: Tensor, x_BMD: Tensor, t_B: Tensor) -> Tensor:
        """The expert's last features [B, W]."""
        angle = t_B[:, None] * self.frequencies
        h_BW = encoded_BW + self.chunk_in(x_BMD.flatten(1)) + self.time(torch.cat([angle.sin(), angle.cos()], -1))
        for block in self.blocks:
            h_BW = h_BW + block(h_BW)
        return h_BW

    def value(self, context: TensorDict, reward_state_BR: Tensor) -> Tensor:
        """Value [B, 1]; `reward_state` is not read when the critic sees observations only."""
        if self.critic_reads == "own":
            parts = [context["observed"], self.critic_task(context["task"])]
        else:
            read_BW = context["encoded"]
            if self.critic_reads == "expert":
                x_BMD = read_BW.new_zeros(len(read_BW), self.rows, self.dims)
                read_BW = self._expert(read_BW, x_BMD, read_BW.new_zeros(len(read_BW)))
            parts = [read_BW.detach() if self.critic_detached else read_BW]
        if self.critic_sees == "subtasks":
            parts.append(reward_state_BR)
        return self.critic(torch.cat(parts, -1))


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))
