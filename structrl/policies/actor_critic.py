"""A VLA with its flow SDE: sampled chunks, deterministic chunks, and the likelihood of stored chunks.

Shapes: B batch, K denoising steps, S scored steps, R = B S rows, M x D model rows x dims, H x A action chunk,
F features.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from structrl import keys, seeding
from structrl.policies.flow import FlowOptions, entropy, integrate, learned_std, replay, sample
from structrl.policies.protocol import VLA
from structrl.seeding import Stream


class Evaluation(NamedTuple):
    """What `ActorCritic.evaluate` returns."""

    log_prob: Tensor  # [B], of the chunk: sum over scored steps, rows and dims
    value: Tensor | None  # [B, 1]; None without a critic
    step_log_probs: Tensor  # [B, K], 0 at ODE steps
    entropy: Tensor  # [B], mean over scored steps and entries
    mean: Tensor  # [B, S, M, D], of the scored steps
    std: Tensor  # [B, S, M, D], 0 at entries that are not scored


class NoiseHead(nn.Module):
    """Standard deviation of the scored steps from the policy's features and time (ReinFlow, arXiv 2505.22094).

    Args:
        width: F, of the features.
        rows: M.
        dims: D.
        low: least standard deviation.
        high: largest; at first every entry has their geometric mean.
    """

    def __init__(self, width: int, rows: int, dims: int, low: float, high: float):
        super().__init__()
        self.rows, self.dims, self.low, self.high = rows, dims, low, high
        last = nn.Linear(64, rows * dims)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.mlp = nn.Sequential(nn.Linear(width + 1, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), last)

    def forward(self, features_RF: Tensor, t_R: Tensor) -> Tensor:
        """Standard deviations [R, M, D]."""
        u = self.mlp(torch.cat([features_RF, t_R[:, None]], -1)).unflatten(-1, (self.rows, self.dims))
        return learned_std(u.float(), self.low, self.high)


class ActorCritic(nn.Module):
    """The trained object: weights, and pure functions of them and their inputs (nothing here draws a random number).

    Chain, mean, standard deviation and log-probability are fp32 whatever the network runs in.

    Args:
        vla: the policy.
        flow: denoising steps, noise level, sampler, which steps are stochastic, and what the network computes in.
        critic: without, no value is computed or written.

    Raises:
        ValueError: `flow.sampler` is `learned` and the policy offers no features to learn it from.
    """

    def __init__(self, vla: VLA, flow: FlowOptions, critic: bool = True):
        super().__init__()
        self.vla, self.flow, self.critic = vla, flow, critic
        self.noise_head: NoiseHead | None = None
        if flow.sampler == "learned":
            if not vla.feature_width:
                raise ValueError(
                    f"flow.sampler 'learned' needs a policy with `features`; {type(vla).__name__} has none"
                )
            self.noise_head = NoiseHead(vla.feature_width, vla.rows, vla.dims, *flow.learned_range)

    def forward(self, mode: str, *args: Any) -> Any:
        """`act`, `act_ode`, `evaluate` or `value`, by name: distributed wrappers hook `forward` only.

        Raises:
            ValueError: for any other mode.
        """
        if mode not in ("act", "act_ode", "evaluate", "value"):
            raise ValueError(f"mode is 'act', 'act_ode', 'evaluate' or 'value', not {mode!r}")
        return getattr(self, mode)(*args)

    def draw(self, counters: np.ndarray) -> tuple[Tensor, Tensor]:
        """Noise [B, K+1, M, D] and index [B] for `act`; row b is a pure function of `counters[b]` (int64 [B, n]).

        The index is uniform over the steps with noise in mode `one`, else -1. Row 0 of the noise is what `act_ode`
        starts from.
        """
        noise = seeding.normal(counters, (self.flow.steps + 1, self.vla.rows, self.vla.dims))
        index = [-1] * len(counters)
        if self.flow.mode == "one":
            drawn = (seeding.generator(seed, Stream.INDEX, *key) for seed, *key in counters.tolist())
            index = [int(g.integers(self.flow.drawable_steps)) for g in drawn]
        device = self.vla.scored.device
        return torch.from_numpy(noise).to(device), torch.tensor(index, dtype=torch.int64, device=device)

    @torch.no_grad()
    def act(self, td: TensorDictBase, noise_BKMD: Tensor, index_B: Tensor) -> TensorDictBase:
        """A copy of `td` with ACTION, CHAIN, INDEX, LOG_PROB, STEP_LOG_PROB and, with a critic, VALUE.

        Args:
            td: OBSERVATION, TASK, and REWARD_STATE where the critic sees it; batch [B].
            noise_BKMD: standard normal fp32 [B, K+1, M, D].
            index_B: int64; the stochastic step, read in mode `one` only.

        Raises:
            ValueError: in mode `one`, if an index is not a denoising step.
        """
        if self.flow.mode == "one" and not ((index_B >= 0) & (index_B < self.flow.steps)).all():
            raise ValueError(f"mode 'one' needs an index in 0..{self.flow.steps - 1} for every sample")
        context = self._encode(td)
        chain_BKMD, step_log_probs_BK = sample(
            self._velocity(context),
            noise_BKMD,
            index_B,
            self.flow,
            self.vla.direction,
            self.vla.scored,
            self._learned(context),
        )
        out = td.copy()
        out[keys.ACTION] = self.vla.to_env(chain_BKMD[:, -1])
        out[keys.CHAIN] = chain_BKMD
        out[keys.INDEX] = index_B if self.flow.mode == "one" else torch.full_like(index_B, -1)
        out[keys.LOG_PROB] = step_log_probs_BK.sum(1)
        out[keys.STEP_LOG_PROB] = step_log_probs_BK
        if self.critic:
            out[keys.VALUE] = self.value(td, context)
        return out

    @torch.no_grad()
    def act_ode(self, td: TensorDictBase, noise_BMD: Tensor) -> TensorDictBase:
        """A copy of `td` with the deterministic ACTION that starts from noise [B, M, D]."""
        x_BMD = integrate(self._velocity(self._encode(td)), noise_BMD, self.flow.steps, self.vla.direction)
        out = td.copy()
        out[keys.ACTION] = self.vla.to_env(x_BMD)
        return out

    def evaluate(self, td: TensorDictBase) -> Evaluation:
        """Likelihood and value of stored chunks (what `act` wrote), with gradients."""
        context = self._encode(td)
        steps = replay(
            self._velocity(context),
            td[keys.CHAIN],
            td[keys.INDEX],
            self.flow,
            self.vla.direction,
            self.vla.scored,
            self._learned(context),
        )
        value_B1 = self.value(td, context) if self.critic else None
        entropy_B = entropy(steps.std[..., self.vla.scored]).mean((1, 2))
        return Evaluation(steps.log_prob.sum(1), value_B1, steps.log_prob, entropy_B, steps.mean, steps.std)

    def value(self, td: TensorDictBase, context: TensorDict | None = None) -> Tensor:
        """Values [B, 1], fp32, of observations; `context` saves the encoding where it is at hand."""
        context = self._encode(td) if context is None else context
        with self._precision():
            return self.vla("value", context, td.get(keys.REWARD_STATE)).float()

    def _encode(self, td: TensorDictBase) -> TensorDict:
        with self._precision():
            return self.vla("encode", td[keys.OBSERVATION], td[keys.TASK].squeeze(-1))

    def _velocity(self, context: TensorDict) -> Any:
        """Velocity of R rows, R a multiple of B: each sample's context serves R / B consecutive rows."""

        def velocity(x_RMD: Tensor, t_R: Tensor) -> Tensor:
            copies = len(x_RMD) // len(context)
            rows = context if copies == 1 else context[:, None].expand(len(context), copies).flatten(0, 1)
            with self._precision():
                return self.vla("velocity", rows, x_RMD, t_R)

        return velocity

    def _learned(self, context: TensorDict) -> Callable[[Tensor], Tensor] | None:
        """The learned standard deviation of R rows, likewise; None with another sampler."""
        head = self.noise_head
        if head is None:
            return None
        features_BF = self.vla("features", context)
        return lambda t_R: head(features_BF.repeat_interleave(len(t_R) // len(features_BF), 0).float(), t_R)

    def _precision(self) -> Any:
        """bf16 where it is asked for; else what is around (weights stay fp32 either way)."""
        if self.flow.precision == "bf16":
            return torch.autocast(self.vla.scored.device.type, torch.bfloat16)
        return contextlib.nullcontext()
