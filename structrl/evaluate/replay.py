"""Runs recorded actions again, this time with pictures of every step.

Physics is a pure function of start and actions, so nothing has to be kept or rendered while a policy is trained or
measured. Shapes: T environment steps of an episode, H action chunk, A action dims, P episodes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.envs import EnvConfig, make_env, row_start
from structrl.evaluate.episodes import Episode
from structrl.evaluate.recorder import EpisodeRecorder
from structrl.rl.rollout import CHUNK, EPISODE, Episodes, run_episodes
from structrl.sims.base import Start
from structrl.sims.registry import simulator_class
from structrl.task import load_task


class ReplayError(RuntimeError):
    """Recorded actions led elsewhere: the simulator is not a pure function of start and actions."""


def executed_actions(episodes: Episodes, row: int) -> NDArray[np.float32]:
    """The actions [T, A] that episode `row` executed."""
    mine = episodes.chunks[episodes.chunks[EPISODE] == row]
    mine = mine[mine[CHUNK].argsort()]
    steps = mine["next"][keys.STEPS].flatten().tolist()
    chunks = mine[keys.ACTION].numpy()
    return np.concatenate([chunk[:n] for chunk, n in zip(chunks, steps, strict=True)]).astype(np.float32)


def select(episodes: Episodes, count: int) -> list[int]:
    """Rows of `count` episodes to look at: the first failures and the first successes, half of each if there are."""
    success = episodes.table[keys.SUCCESS].numpy()
    failures, successes = np.flatnonzero(~success), np.flatnonzero(success)
    half = max(count // 2, count - len(successes))
    chosen = [*failures[:half], *successes[: count - min(half, len(failures))]]
    return sorted(int(row) for row in chosen)


def film(config: EnvConfig, episodes: Episodes, rows: Sequence[int]) -> list[Episode]:
    """Episodes `rows` once more, with one picture of every step under `observation`, at most 1 environment each.

    Args:
        config: the environment they were run in.
        episodes: what `run_episodes` returned.
        rows: which of them.

    Raises:
        ValueError: the simulator makes no pictures (its class says nothing under `film`).
        ReplayError: an episode ended otherwise than it did.
    """
    starts = [row_start(row) for row in episodes.table[keys.START][list(rows)].tolist()]
    actions = [executed_actions(episodes, row) for row in rows]
    env = make_env(film_config(config, len(rows)), record=True)
    try:
        filmed = replay(env, starts, actions)
    finally:
        env.close()
    for episode, row, planned in zip(filmed, rows, actions, strict=True):
        success = bool(episodes.table[keys.SUCCESS][row])
        if episode.length != len(planned) or episode.succeeded != success:
            raise ReplayError(
                f"episode {row} (task '{episode.task.name}') took {len(planned)} steps (success: {success}), and "
                f"{episode.length} (success: {episode.succeeded}) when its actions were run again"
            )
    return filmed


def film_config(config: EnvConfig, num_envs: int) -> EnvConfig:
    """The environment of a config with a camera for people, one step per chunk.

    Raises:
        ValueError: the simulator makes no pictures.
    """
    name = str(load_task(config.tasks[0]).sim)
    arguments = simulator_class(name).film
    if not arguments:
        raise ValueError(f"simulator '{name}' makes no pictures: its class has no `film` arguments")
    return dataclasses.replace(config.sized(num_envs), chunk=1, sim=config.sim | arguments)


def replay(env: Any, starts: Sequence[Start], actions: Sequence[NDArray[np.float32]]) -> list[Episode]:
    """Run each start with its actions [T, A] in an environment made with `record=True`; past T the last one goes on."""
    kept: list[Episode] = []
    H = env.base_env.chunk

    def act(td: TensorDict, chunk: Tensor, episode: Tensor) -> TensorDict:
        rows = [
            actions[e][np.minimum(t + np.arange(H), len(actions[e]) - 1)]
            for e, t in zip(episode.tolist(), td[keys.TIME].flatten().tolist(), strict=True)
        ]
        return td.set(keys.ACTION, torch.from_numpy(np.stack(rows)))

    run_episodes(env, act, starts, on_chunk=EpisodeRecorder(env, kept.append))
    return kept
