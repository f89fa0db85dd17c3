"""A VLA with its flow SDE: sampled chunks, deterministic chunks, and the likelihood of stored chunks.

Shapes: B batch, K denoising steps, S scored steps, M x D model rows x dims, H x A action chunk.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from structrl import keys, seeding
from structrl.policies.flow import FlowOptions, integrate, log_prob, sample
from structrl.policies.protocol import VLA


class Evaluation(NamedTuple):
    """What `ActorCritic.evaluate` returns."""

    log_prob: Tensor  # [B], of the chunk: sum over scored steps, rows and dims
    value: Tensor  # [B, 1]
    step_log_probs: Tensor  # [B, K], 0 at ODE steps


class ActorCritic(nn.Module):
    """The trained object: weights, and pure functions of them and their inputs (nothing here draws a random number).

    Chain, mean, standard deviation and log-probability are fp32 whatever the network runs in.

    Args:
        vla: the policy.
        flow: denoising steps, noise level and which steps are stochastic.
    """

    def __init__(self, vla: VLA, flow: FlowOptions):
        super().__init__()
        self.vla, self.flow = vla, flow

    def forward(self, mode: str, *args: Any) -> Any:
        """`act`, `act_ode` or `evaluate`, by name: distributed wrappers hook `forward` only.

        Raises:
            ValueError: for any other mode.
        """
        if mode not in ("act", "act_ode", "evaluate"):
            raise ValueError(f"mode is 'act', 'act_ode' or 'evaluate', not {mode!r}")
        return getattr(self, mode)(*args)

    def draw(self, counters: np.ndarray) -> tuple[Tensor, Tensor]:
        """Noise [B, K+1, M, D] and index [B] for `act`; row b is a pure function of `counters[b]` (int64 [B, n]).

        The index is uniform over steps in mode `one`, else -1. Row 0 of the noise is what `act_ode` starts from.
        """
        K = self.flow.steps
        noise = seeding.normal(counters, (K + 1, self.vla.rows, self.vla.dims))
        index = [seeding.generator(*key, 1).integers(K) if self.flow.mode == "one" else -1 for key in counters.tolist()]
        device = self.vla.scored.device
        return torch.from_numpy(noise).to(device), torch.tensor(index, dtype=torch.int64, device=device)

    @torch.no_grad()
    def act(self, td: TensorDictBase, noise_BKMD: Tensor, index_B: Tensor) -> TensorDictBase:
        """A copy of `td` with ACTION, CHAIN, INDEX, LOG_PROB and VALUE.

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
            self._velocity(context), noise_BKMD, index_B, self.flow, self.vla.direction, self.vla.scored
        )
        out = td.copy()
        out[keys.ACTION] = self.vla.to_env(chain_BKMD[:, -1])
        out[keys.CHAIN] = chain_BKMD
        out[keys.INDEX] = index_B if self.flow.mode == "one" else torch.full_like(index_B, -1)
        out[keys.LOG_PROB] = step_log_probs_BK.sum(1)
        out[keys.VALUE] = self.vla("value", context, td.get(keys.REWARD_STATE)).float()
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
        step_log_probs_BK = log_prob(
            self._velocity(context), td[keys.CHAIN], td[keys.INDEX], self.flow, self.vla.direction, self.vla.scored
        )
        value_B1 = self.vla("value", context, td.get(keys.REWARD_STATE)).float()
        return Evaluation(step_log_probs_BK.sum(1), value_B1, step_log_probs_BK)

    def _encode(self, td: TensorDictBase) -> TensorDict:
        return self.vla("encode", td[keys.OBSERVATION], td[keys.TASK].squeeze(-1))

    def _velocity(self, context: TensorDict) -> Any:
        """Velocity of R rows, R a multiple of B: each sample's context serves R / B consecutive rows."""

        def velocity(x_RMD: Tensor, t_R: Tensor) -> Tensor:
            copies = len(x_RMD) // len(context)
            rows = context if copies == 1 else context[:, None].expand(len(context), copies).flatten(0, 1)
            return self.vla("velocity", rows, x_RMD, t_R)

        return velocity
