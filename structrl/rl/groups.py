"""Groups of episodes that share a start: proof that they do, their statistics, and rounds of them.

Shapes: P episodes and Q groups of this rank, B running environments.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from structrl.rl.options import GRPOOptions
from structrl.rl.rollout import ENV, EPISODE, Act, Episodes
from structrl.sims.base import Start
from structrl.sims.runner import EpisodeLostError


class GroupStartError(RuntimeError):
    """Episodes of one group did not begin in the same simulator state."""


class GroupStarts:
    """Wraps an `act` of `run_episodes`: before an episode's first action it hashes the simulator's state.

    Args:
        act: the policy.
        env: the environment; its `state` is everything that the episode's future depends on.
        starts: equal starts are one group.

    Attributes:
        seen: group (its start) -> hash of each entry of the state, of the first member seen.
        members: episodes compared so far.

    Raises:
        GroupStartError: a member whose state differs; names the entries of the state that do.
    """

    def __init__(self, act: Act, env: Any, starts: Sequence[Start]):
        self.act, self.env, self.starts = act, getattr(env, "base_env", env), starts
        self.seen: dict[Start, dict[str, bytes]] = {}
        self.members = 0

    def __call__(self, td: TensorDict, chunk_B: Tensor, episode_B: Tensor) -> TensorDict:
        """Check new episodes, then act."""
        new = chunk_B == 0
        while True:
            present = new & ~torch.from_numpy(self.env.lost)[td[ENV]]  # who is lost has no state, and is dropped
            try:
                state = self.env.state(td[ENV][present].numpy()) if present.any() else {}
                break
            except EpisodeLostError:  # just now: fewer are left
                continue
        for i, row in enumerate(episode_B[present].tolist()):
            self._compare(self.starts[row], {name: _digest(x[i]) for name, x in state.items()})
        return self.act(td, chunk_B, episode_B)

    def _compare(self, start: Start, digest: dict[str, bytes]) -> None:
        self.members += 1
        known = self.seen.setdefault(start, digest)
        if known != digest:
            differing = sorted(name for name in digest if known.get(name) != digest[name])
            raise GroupStartError(
                f"two episodes of one group (start {start}) begin in different states: {', '.join(differing)} differ. "
                "GRPO compares returns from one start: the simulator's reset must be a function of the start alone"
            )


def _digest(x: Any) -> bytes:
    """Hash of one entry of one environment's state."""
    if not isinstance(x, np.ndarray | np.generic) or x.dtype == object:
        return hashlib.blake2b(repr(x).encode(), digest_size=16).digest()
    return hashlib.blake2b(x.tobytes() + repr((x.shape, x.dtype.str)).encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Groups:
    """Statistics of groups, in ascending order of their numbers.

    Attributes:
        row: int64 [P], the group of each episode.
        advantage: f32 [P], (R - mean) / max(std, floor); 0 in groups of one and in groups without spread.
        number: int64 [Q], of each group in the iteration.
        std: f32 [Q], unbiased, of the returns; NaN in groups of one.
        usable: bool [Q], at least two members.
        kept: bool [Q], usable and accepted by `keep_if`.
    """

    row: Tensor
    advantage: Tensor
    number: Tensor
    std: Tensor
    usable: Tensor
    kept: Tensor

    def counted(self) -> dict[str, Tensor]:
        """What is worth counting, each bool [Q]."""
        return {
            "groups": torch.ones_like(self.usable),
            "too_small": ~self.usable,
            "zero_variance": self.usable & ~(self.std > 0),
            "kept": self.kept,
        }


def group_statistics(
    number_P: Tensor, return_P: Tensor, success_P: Tensor, options: GRPOOptions, beta: float
) -> Groups:
    """Advantages within groups (arXiv 2402.03300), and which groups `keep_if` accepts.

    Args:
        number_P: int64, the group of each episode; members that were lost are simply not there.
        return_P: undiscounted returns.
        success_P: bool.
        options: floor of the standard deviation, and the bounds of dynamic sampling.
        beta: of the reward.
    """
    number, row = number_P.unique(return_inverse=True)
    size = torch.bincount(row, minlength=len(number))

    def mean(x_P: Tensor) -> Tensor:
        return x_P.new_zeros(len(number)).index_add_(0, row, x_P) / size

    value_P = return_P.double()
    centred_P = value_P - mean(value_P)[row]
    std = (mean(centred_P.square()) * size / (size - 1)).sqrt()  # NaN for groups of one
    std = torch.where(std < 1e-6, 0.0, std)  # what rounding leaves of equal returns
    scale = std.clamp(min=options.std_floor * beta)
    usable = size >= 2
    advantage_P = torch.where((usable & (scale > 0))[row], centred_P / scale[row], 0.0)
    share = mean(success_P.double())
    if options.keep_if == "success":
        accepted = (options.success_low <= share) & (share <= options.success_high)
    else:
        accepted = std >= options.min_return_std
    return Groups(row, advantage_P.float(), number, std.float(), usable, usable & accepted)


def chain_rounds(rounds: Sequence[Episodes]) -> Episodes:
    """Several rollouts as one, episodes renumbered."""
    if len(rounds) == 1:
        return rounds[0]
    chunks, kept, first, asked = [], [], 0, 0
    for episodes in rounds:
        chunks.append(episodes.chunks.copy().set(EPISODE, episodes.chunks[EPISODE] + first))
        kept.append(episodes.kept + asked)
        first, asked = first + len(episodes), asked + episodes.asked
    seconds = {name: sum(e.seconds[name] for e in rounds) for name in rounds[0].seconds}
    table, final = (torch.cat([getattr(e, name) for e in rounds]) for name in ("table", "final"))
    return Episodes(torch.cat(chunks), table, final, seconds, torch.cat(kept), asked)
