"""PPO: generalised advantage estimates from a critic."""

from collections.abc import Callable
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import VLA, VLASpec
from structrl.rl.actors import hide_time
from structrl.rl.advantages import moments, normalise
from structrl.rl.base import OnPolicy
from structrl.rl.batch import ADVANTAGE, VALUE_TARGET, add_advantages, add_weights, select_inputs
from structrl.rl.components import RewardHook
from structrl.rl.losses import explained_variance
from structrl.rl.metrics import Metrics
from structrl.rl.options import PPOOptions
from structrl.rl.rollout import Episodes


class PPO(OnPolicy):
    """Proximal policy optimisation; see `OnPolicy` for the arguments.

    Args:
        policy: builds the VLA from the environment's spec.
        flow: how action chunks are drawn.
        ppo: everything else.
        warm_start: checkpoint whose weights, without the critic's, are loaded first.
        reward_hook: may rewrite the reward's components after each rollout.
    """

    options: PPOOptions

    def __init__(
        self,
        policy: Callable[[VLASpec], VLA] = CompactVLA,
        flow: FlowOptions = FlowOptions(),  # noqa: B008 - frozen
        ppo: PPOOptions = PPOOptions(),  # noqa: B008 - frozen
        warm_start: str | None = None,
        reward_hook: RewardHook | None = None,
    ):
        super().__init__(policy, flow, ppo, warm_start, reward_hook)
        self.blind_to_time = ppo.time_limit == "bootstrap"

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The critic has a learning rate of its own."""
        (actor,) = super().parameter_groups()
        return [actor, actor | {"lr": self.options.critic_learning_rate}]

    def on_fit_start(self) -> None:
        """Check what potential-based shaping asks for.

        Raises:
            ValueError: the reward shapes with another discount than learning uses, or bootstraps at the time limit.
        """
        super().on_fit_start()
        reward = self._data.env.reward.resolved()
        if reward.pace == "potential" and self.blind_to_time:
            raise ValueError("potential-based shaping ends with the episode: it needs model.ppo.time_limit terminal")
        if reward.pace == "potential" and (reward.gamma, "chunk") != (self.options.gamma, self.options.gamma_per):
            raise ValueError(
                f"potential-based shaping needs one discount: data.env.reward.gamma is {reward.gamma} per chunk, "
                f"model.ppo.gamma {self.options.gamma} per {self.options.gamma_per}"
            )

    def warming_up(self) -> bool:
        """In the first `critic_warmup` iterations; the iteration number is in the checkpoint."""
        return self.trainer.current_epoch < self.options.critic_warmup

    def prepare(self, episodes: Episodes) -> tuple[TensorDict, Tensor, Metrics]:
        """Advantages and value targets of every chunk."""
        add_advantages(episodes, self.options, self._final_value(episodes) if self.blind_to_time else None)
        add_weights(episodes, self.options, self._data.plans.horizon, self._data.environment.chunk, self.sum)
        chunks = select_inputs(episodes.chunks)
        explained = explained_variance(chunks[keys.VALUE].squeeze(-1), chunks[VALUE_TARGET], self.sum)
        if self.options.normalise_advantages:
            advantage = chunks[ADVANTAGE]
            everyone = self.sum(moments(advantage, torch.ones_like(advantage, dtype=torch.bool))).cpu()
            chunks[ADVANTAGE] = normalise(advantage, everyone)
        metrics = {} if explained.isnan() else {"losses/explained_variance": explained.item()}
        return chunks, episodes.table["chunks"], metrics

    @torch.no_grad()
    def _final_value(self, episodes: Episodes) -> Tensor:
        """Value of the observation after each episode, [P]."""
        td = cast(TensorDict, hide_time(episodes.final)).to(self.device)
        return self.policy("value", td).squeeze(-1).cpu()
