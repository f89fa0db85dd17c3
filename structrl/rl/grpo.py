"""GRPO: the advantage of an episode is its return against those of its group, which shares its start. No critic."""

import dataclasses
from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import VLA, VLASpec
from structrl.rl.base import OnPolicy
from structrl.rl.batch import ADVANTAGE, WEIGHT, add_weights, select_inputs
from structrl.rl.components import RewardHook, returns, reweigh
from structrl.rl.groups import Groups, chain_rounds, group_statistics
from structrl.rl.metrics import Metrics
from structrl.rl.options import GRPOOptions
from structrl.rl.rollout import EPISODE, Episodes


class GRPO(OnPolicy):
    """Group-relative policy optimisation (arXiv 2402.03300) with clip-higher and dynamic sampling (arXiv 2503.14476).

    `data.episodes_per_iteration` counts episodes: groups of `grpo.group_size` that share one start. That they do is
    checked by a hash of the simulator's state at each reset.

    Args:
        policy: builds the VLA from the environment's spec; its critic is neither trained nor asked.
        flow: how action chunks are drawn.
        grpo: everything else.
        warm_start: checkpoint whose weights, without the critic's, are loaded first.
        reward_hook: may rewrite the reward's components after each rollout.
    """

    has_critic = False
    options: GRPOOptions

    def __init__(
        self,
        policy: Callable[[VLASpec], VLA] = CompactVLA,
        flow: FlowOptions = FlowOptions(),  # noqa: B008 - frozen
        grpo: GRPOOptions = GRPOOptions(),  # noqa: B008 - frozen
        warm_start: str | None = None,
        reward_hook: RewardHook | None = None,
    ):
        super().__init__(policy, flow, grpo, warm_start, reward_hook)
        self.group_size = grpo.group_size
        self.rounds = 1  # of the latest iteration

    def on_fit_start(self) -> None:
        """Check what potential-based shaping asks for.

        Raises:
            ValueError: the reward shapes with a discount; returns of groups have none.
        """
        super().on_fit_start()
        reward = self._data.env.reward.resolved()
        if reward.pace == "potential" and reward.gamma != 1:
            raise ValueError("potential-based shaping of undiscounted returns needs data.env.reward.gamma 1")

    def wants_more(self, rounds: list[Episodes]) -> bool:
        """With `refill`: until enough groups are kept, or `max_rounds`."""
        self.rounds = len(rounds)
        if self.options.dynamic_sampling != "refill" or len(rounds) >= self.options.max_rounds:
            return False
        kept = sum(int(self.sum(self._groups(episodes).kept.sum())) for episodes in rounds)
        return kept < self._data.episodes_per_iteration // self.group_size

    def select(self, rounds: list[Episodes]) -> Episodes:
        """The episodes of all rounds; which groups take part is decided in `prepare`."""
        return chain_rounds(rounds)

    def prepare(self, episodes: Episodes) -> tuple[TensorDict, Tensor, Metrics]:
        """The group-relative advantage on every chunk of the groups that take part."""
        groups = self._groups(episodes, reweighed=True)
        takes_part = self._first_wanted(groups)[groups.row]
        row = episodes.chunks[EPISODE]
        episodes.chunks[ADVANTAGE] = groups.advantage[row]
        used = dataclasses.replace(episodes, chunks=episodes.chunks[takes_part[row]])
        add_weights(used, self.options, self._data.plans.horizon, self._data.environment.chunk, self.sum)
        # a rank none of whose groups takes part still needs a row to take part in other ranks' minibatches with
        chunks = used.chunks if len(used.chunks) else episodes.chunks[:1].set(WEIGHT, torch.zeros(1))
        counts = torch.where(takes_part, episodes.table["chunks"], 0)
        sums = {name: float(self.sum(x.sum().double())) for name, x in groups.counted().items()}
        metrics = {f"grpo/{name}": x for name, x in sums.items()}
        metrics["grpo/used"] = float(self.sum(takes_part.sum().double())) / self.group_size
        metrics["grpo/rounds"] = float(self.rounds)
        if sums["groups"] > sums["too_small"]:
            spread = float(self.sum(groups.std.nan_to_num(nan=0.0).sum().double()))
            metrics["grpo/return_std"] = spread / (sums["groups"] - sums["too_small"])
        return select_inputs(chunks), counts, metrics

    def _groups(self, episodes: Episodes, reweighed: bool = False) -> Groups:
        """Statistics of this rank's groups."""
        if not reweighed and (self.options.reward_weights or self.reward_hook):
            episodes = dataclasses.replace(episodes, chunks=episodes.chunks.clone())
            reweigh(episodes, self.options.reward_weights, self.reward_hook)
        beta = self._data.env.reward.resolved().beta
        return group_statistics(
            episodes.table[keys.START][:, -1], returns(episodes), episodes.table[keys.SUCCESS], self.options, beta
        )

    def _first_wanted(self, groups: Groups) -> Tensor:
        """Which of this rank's groups the update uses: the kept ones, over all ranks no more than wanted."""
        wanted = self._data.episodes_per_iteration // self.group_size
        if self.options.dynamic_sampling == "off":
            return groups.usable
        mine = torch.zeros(wanted * self.options.max_rounds, dtype=torch.int64)
        mine[groups.number[groups.kept]] = 1
        kept = self.sum(mine).cpu()
        first = (kept > 0) & (kept.cumsum(0) <= wanted)
        return groups.kept & first[groups.number]
