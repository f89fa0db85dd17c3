"""As many policy calls on every rank, for policies whose calls communicate (`structrl.rl.sharding`)."""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from structrl.rl.rollout import Act


class Lockstep:
    """An `act` of `run_episodes` that keeps step with the other ranks; close it when the rollout is over.

    Ranks run different episodes, so some are done earlier. Those go on calling the policy on the row they saw last,
    until every rank is done; what comes out is thrown away. (A rank whose rollout fails leaves the others waiting:
    `structrl.rl.preemption` ends them.)

    Args:
        act: calls the policy once.
        sum_ranks: sums a tensor over the ranks.
    """

    def __init__(self, act: Act, sum_ranks: Callable[[Tensor], Tensor]):
        self.act, self.sum = act, sum_ranks
        self.latest: tuple[TensorDict, Tensor, Tensor] | None = None

    def __call__(self, td: TensorDict, chunk_B: Tensor, episode_B: Tensor) -> TensorDict:
        """Act, all ranks together."""
        self._somebody_acts(True)
        self.latest = (td[:1].clone(), chunk_B[:1].clone(), episode_B[:1].clone())
        return self.act(td, chunk_B, episode_B)

    def close(self) -> None:
        """Call the policy until no rank has anything to act on.

        Raises:
            RuntimeError: this rank has not acted at all.
        """
        while self._somebody_acts(False):
            if self.latest is None:
                raise RuntimeError("a rank without a single observation cannot keep step with the others")
            td, chunk, episode = self.latest
            self.act(td.clone(), chunk, episode)

    def _somebody_acts(self, me: bool) -> bool:
        return bool(self.sum(torch.tensor(float(me))))


def in_lockstep(run: Callable[[Act], Any], act: Act, sum_ranks: Callable[[Tensor], Tensor]) -> Any:
    """`run(act)` with as many calls of `act` on every rank."""
    steady = Lockstep(act, sum_ranks)
    out = run(steady)
    steady.close()
    return out
