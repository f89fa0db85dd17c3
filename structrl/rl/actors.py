"""How a policy acts in `run_episodes`: its noise is a pure function of seed, iteration, episode and chunk.

Shapes: B running environments.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from structrl.policies.actor_critic import ActorCritic
from structrl.rl.rollout import Act
from structrl.seeding import Stream
from structrl.sims.base import Start

# Every call of the policy goes through this; a LightningModule passes one that its strategy hooks.
Call = Callable[..., TensorDict]


def counters(starts: Sequence[Start], episode_B: Tensor, chunk_B: Tensor) -> np.ndarray:
    """(seed, stream, iteration, global episode, chunk) of each row, int64 [B, 5].

    Training episodes (stream START) draw their noise from stream NOISE, evaluation episodes from EVALUATE.
    """
    rows = []
    for e, c in zip(episode_B.tolist(), chunk_B.tolist(), strict=True):
        seed, stream, iteration, episode = starts[e].seed[:4]
        rows.append((seed, Stream.NOISE if stream == Stream.START else stream, iteration, episode, c))
    return np.array(rows, np.int64)


def sampling(policy: ActorCritic, starts: Sequence[Start], call: Call | None = None) -> Act:
    """Acts by the flow SDE, and writes chain, log-probability and value."""
    call = policy if call is None else call

    def act(td: TensorDict, chunk_B: Tensor, episode_B: Tensor) -> TensorDict:
        device = policy.vla.scored.device
        noise, index = policy.draw(counters(starts, episode_B, chunk_B))
        with torch.no_grad():
            return call("act", td.to(device), noise, index).to(td.device or "cpu")

    return act


def deterministic(policy: ActorCritic, starts: Sequence[Start], call: Call | None = None) -> Act:
    """Acts by the ODE from seeded initial noise: evaluation."""
    call = policy if call is None else call

    def act(td: TensorDict, chunk_B: Tensor, episode_B: Tensor) -> TensorDict:
        device = policy.vla.scored.device
        noise, _ = policy.draw(counters(starts, episode_B, chunk_B))
        with torch.no_grad():
            return call("act_ode", td.to(device), noise[:, 0]).to(td.device or "cpu")

    return act
