"""Demonstrations as training data: everything in memory, batches a pure function of the step number.

Shapes: B batch, H x A action chunk, R all recorded environment steps of all demonstrations, O their observations.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from lightning import LightningDataModule
from tensordict import TensorDict
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from structrl import keys
from structrl.envs import EnvConfig, make_env
from structrl.evaluate.episodes import Episode, EpisodeFile, EpisodeFileError
from structrl.lang.spec import TaskSpec
from structrl.policies.protocol import VLASpec, env_spec
from structrl.rl.data import identity
from structrl.seeding import Stream, generator


class DemoTensors:
    """All chunks that can be cut from demonstrations: one for every observation that has an action after it.

    Args:
        episodes: demonstrations.
        tasks: the task list; a demonstration's row is that of the task with its name.
        spec: what the policy reads and does.

    Raises:
        ValueError: demonstrations of a task that is not in the list or ran in another scene, a task without any, or
            observations and actions of other shapes than the environment's.
    """

    def __init__(self, episodes: list[Episode], tasks: tuple[TaskSpec, ...], spec: VLASpec) -> None:
        row = {task.name: i for i, task in enumerate(tasks)}
        for episode in episodes:
            _check(episode, tasks, row, spec)
        for task in tasks:
            if all(episode.task.name != task.name for episode in episodes):
                raise ValueError(f"no demonstration of task '{task.name}' ({task.path}); record some: structrl demos")

        self.chunk = spec.chunk
        length = np.array([episode.length for episode in episodes])
        first = np.cumsum(length) - length  # row of each episode's first action
        usable = [episode.obs_at < episode.length for episode in episodes]  # the last observation has no action
        self.action_RA = torch.from_numpy(np.concatenate([episode.actions for episode in episodes]))
        self.observation = {
            name: torch.from_numpy(
                np.concatenate([e.observation[name][u] for e, u in zip(episodes, usable, strict=True)])
            )
            for name in spec.observation
        }
        counts = [int(u.sum()) for u in usable]
        at = np.concatenate([e.obs_at[u] for e, u in zip(episodes, usable, strict=True)])
        self.task_O = torch.from_numpy(np.repeat([row[e.task.name] for e in episodes], counts))
        self.begin_O = torch.from_numpy(np.repeat(first, counts) + at)  # row of the chunk's first action
        self.left_O = torch.from_numpy(np.repeat(length, counts) - at)  # steps to the end of the episode, >= 1

    def __len__(self) -> int:
        return len(self.task_O)

    def batch(self, index_B: Tensor) -> TensorDict:
        """Chunks `index_B`: OBSERVATION, TASK [B, 1], ACTION [B, H, A] and `pad` bool [B, H].

        Rows beyond the end of a demonstration repeat its last action and are marked in `pad`.
        """
        step_H = torch.arange(self.chunk)
        left_B1 = self.left_O[index_B, None]
        row_BH = self.begin_O[index_B, None] + torch.minimum(step_H, left_B1 - 1)
        observation = TensorDict(
            {tuple(name.split(".")): value[index_B] for name, value in self.observation.items()}, [len(index_B)]
        )
        return TensorDict(
            {
                keys.OBSERVATION: observation,
                keys.TASK: self.task_O[index_B, None],
                keys.ACTION: self.action_RA[row_BH],
                "pad": step_H >= left_B1,
            },
            [len(index_B)],
        )


def _check(episode: Episode, tasks: tuple[TaskSpec, ...], row: dict[str, int], spec: VLASpec) -> None:
    name = episode.task.name
    if name not in row:
        raise ValueError(f"the demonstrations are of task '{name}', the config lists {', '.join(row)}")
    task = tasks[row[name]]
    if (task.sim, task.sim_args) != (episode.task.sim, episode.task.sim_args):
        raise ValueError(
            f"task '{name}' was demonstrated in {episode.task.sim}({episode.task.sim_args}), and {task.path} now says "
            f"{task.sim}({task.sim_args}); record demonstrations again"
        )
    shapes = {n: episode.observation[n].shape[1:] if n in episode.observation else None for n in spec.observation}
    if shapes != spec.observation or episode.actions.shape[1] != spec.action_dim:
        raise ValueError(
            f"demonstrations of '{name}' have observations {shapes} and {episode.actions.shape[1]} action dims, the "
            f"environment {spec.observation} and {spec.action_dim}; record demonstrations again"
        )


def _demonstrations(file: EpisodeFile) -> list[Episode]:
    """All episodes of a file, which must be fit to learn from.

    Raises:
        EpisodeFileError: some did not succeed, or are evaluation episodes of a policy.
    """
    episodes = list(file)
    failed = [i for i, episode in enumerate(episodes) if not episode.succeeded]
    if failed:
        raise EpisodeFileError(
            f"{file.path}: {len(failed)} of {len(episodes)} episodes did not succeed (first: {failed[0]}); "
            "demonstrations must, so record only those that do (structrl demos keeps no others)"
        )
    if any(episode.start[3] == Stream.EVALUATE for episode in episodes):
        raise EpisodeFileError(
            f"{file.path} holds evaluation episodes of a policy: learning from them would spoil every evaluation on "
            "the same starts; record demonstrations with structrl demos"
        )
    return episodes


class _Steps(IterableDataset):
    """One epoch: the batches of its steps. Sized, so that Lightning neither prefetches nor guesses its length."""

    def __init__(self, data: "DemoData") -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.steps_per_epoch

    def __iter__(self) -> Iterator[TensorDict]:
        trainer = self.data.trainer
        epoch = 0 if trainer is None else trainer.current_epoch
        for i in range(len(self)):
            yield self.data.step_batch(epoch * len(self) + i)


class DemoData(LightningDataModule):
    """Demonstrations for `FlowMatching`.

    Args:
        env: the environment that the policy will act in; it fixes tasks, chunk, and so the policy's shapes. Give the
            same here as in the RL that will start from these weights.
        demos: HDF5 files of `structrl demos`, one or more per task.
        batch_size: chunks per step, summed over ranks.
        steps_per_epoch: optimiser steps between checkpoints; training takes trainer.max_epochs times as many.
        seed: of first weights, batches, noise and times; default: the config's `seed_everything`.

    Raises:
        ValueError: demonstrations that do not belong to `env`, at `setup`.
    """

    spec: VLASpec
    chunks: DemoTensors

    def __init__(
        self,
        env: EnvConfig,
        demos: list[str],
        batch_size: int = 256,
        steps_per_epoch: int = 100,
        seed: int | None = None,
    ):
        super().__init__()
        if batch_size < 1 or steps_per_epoch < 1:
            raise ValueError(
                f"data.batch_size and data.steps_per_epoch must be at least 1, not {batch_size} and {steps_per_epoch}"
            )
        self.env, self.demos, self.batch_size, self.steps_per_epoch = env, demos, batch_size, steps_per_epoch
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        if self.seed < 0:
            raise ValueError(f"data.seed must be 0 or more, not {self.seed}")

    def setup(self, stage: str) -> None:
        """Read the demonstrations."""
        if hasattr(self, "chunks"):
            return
        missing = [file for file in self.demos if not Path(file).is_file()]
        if missing or not self.demos:
            raise EpisodeFileError(
                f"no demonstrations at {', '.join(missing) or '(data.demos is empty)'}; record them first: "
                "structrl demos TASK --episodes N --out FILE.h5"
            )
        env = make_env(self.env.sized(1))
        self.spec, tasks = env_spec(env), env.simulator.tasks
        env.close()
        episodes: list[Episode] = []
        for path in self.demos:
            with EpisodeFile(path) as file:
                episodes += _demonstrations(file)
        self.chunks = DemoTensors(episodes, tasks, self.spec)

    def step_batch(self, step: int) -> TensorDict:
        """This rank's share of the batch of optimiser step `step`: chunks drawn uniformly, with replacement.

        `counter` int64 [B, 3] = (seed, stream, step) and `row` int64 [B], the rows' numbers over all ranks, say what
        noise and time a row takes.
        """
        index = generator(self.seed, Stream.IMITATION, step, 0).integers(len(self.chunks), size=self.batch_size)
        rank, ranks = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        mine = np.arange(self.batch_size)[rank::ranks]
        batch = self.chunks.batch(torch.from_numpy(index[mine]))
        batch["counter"] = torch.tensor([self.seed, int(Stream.IMITATION), step]).expand(len(mine), 3)
        batch["row"] = torch.from_numpy(mine)
        return batch

    def train_dataloader(self) -> DataLoader:
        """One epoch of `steps_per_epoch` batches."""
        return DataLoader(_Steps(self), batch_size=None, collate_fn=identity)
