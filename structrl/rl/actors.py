"""How a policy acts in `run_episodes`: its noise is a pure function of seed, iteration, episode and chunk.

Shapes: B running environments.
"""

from collections.abc import Sequence

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.policies.actor_critic import ActorCritic
from structrl.rewards.functional import without_time
from structrl.rl.rollout import Act
from structrl.seeding import Stream
from structrl.sims.base import Start


def counters(
    starts: Sequence[Start], episode_B: Tensor, chunk_B: Tensor, numbers: Sequence[int] | None = None
) -> np.ndarray:
    """(seed, stream, iteration, global episode, chunk) of each row, int64 [B, 5].

    Training episodes (stream START) draw their noise from stream NOISE, evaluation episodes from EVALUATE. `numbers`
    are the global episode numbers where a start does not tell them, because several episodes share it.
    """
    rows = []
    for e, c in zip(episode_B.tolist(), chunk_B.tolist(), strict=True):
        seed, stream, iteration, episode = starts[e].seed[:4]
        episode = episode if numbers is None else numbers[e]
        rows.append((seed, Stream.NOISE if stream == Stream.START else stream, iteration, episode, c))
    return np.array(rows, np.int64)


def sampling(
    policy: ActorCritic, starts: Sequence[Start], numbers: Sequence[int] | None = None, blind_to_time: bool = False
) -> Act:
    """Acts by the flow SDE, and writes chain, log-probability and value.

    `numbers`: see `counters`; `blind_to_time`: see `hide_time`.
    """

    def act(td: TensorDict, chunk_B: Tensor, episode_B: Tensor) -> TensorDict:
        noise, index = policy.draw(counters(starts, episode_B, chunk_B, numbers))
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
    """A copy of `td` whose reward state does not tell the time.

    A critic that bootstraps past the time limit must not see how near it is.
    """
    return td.copy().set(keys.REWARD_STATE, without_time(td.get(keys.REWARD_STATE)))
