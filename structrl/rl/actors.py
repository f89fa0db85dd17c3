"""How a policy acts in `run_episodes`: its noise is a pure function of seed, iteration, episode and chunk.

Shapes: B running environments.
"""

from collections.abc import Sequence

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.policies.actor_critic import ActorCritic
from structrl.rl.rollout import Act
from structrl.seeding import Stream
from structrl.sims.base import Start

TIME_COLUMN = -4  # of reward_state: t / horizon, see structrl.rewards.functional.reward_state


def counters(starts: Sequence[Start], episode_B: Tensor, chunk_B: Tensor) -> np.ndarray:
    """(seed, stream, iteration, global episode, chunk) of each row, int64 [B, 5].

    Training episodes (stream START) draw their noise from stream NOISE, evaluation episodes from EVALUATE.
    """
    rows = []
    for e, c in zip(episode_B.tolist(), chunk_B.tolist(), strict=True):
        seed, stream, iteration, episode = starts[e].seed[:4]
        rows.append((seed, Stream.NOISE if stream == Stream.START else stream, iteration, episode, c))
    return np.array(rows, np.int64)


def sampling(policy: ActorCritic, starts: Sequence[Start], blind_to_time: bool = False) -> Act:
    """Acts by the flow SDE, and writes chain, log-probability and value; `blind_to_time`: see `hide_time`."""

    def act(td: TensorDict, chunk_B: Tensor, episode_B: Tensor) -> TensorDict:
        noise, index = policy.draw(counters(starts, episode_B, chunk_B))
        td = hide_time(td) if blind_to_time else td
        return policy("act", td.to(noise.device), noise, index).to("cpu")

    return act


def deterministic(policy: ActorCritic, starts: Sequence[Start]) -> Act:
    """Acts by the ODE from seeded initial noise: evaluation."""

    def act(td: TensorDict, chunk_B: Tensor, episode_B: Tensor) -> TensorDict:
        noise, _ = policy.draw(counters(starts, episode_B, chunk_B))
        return policy("act_ode", td.to(noise.device), noise[:, 0]).to("cpu")

    return act


def hide_time(td: TensorDict) -> TensorDict:
    """A copy of `td` whose reward state does not tell t / horizon.

    A critic that bootstraps past the time limit must not see how near it is.
    """
    hidden = td.get(keys.REWARD_STATE).clone()
    hidden[..., TIME_COLUMN] = 0.0
    return td.copy().set(keys.REWARD_STATE, hidden)
