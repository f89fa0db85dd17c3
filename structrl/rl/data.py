"""The data of PPO: an epoch is an iteration is one batch, collected with the weights of the moment."""

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import lightning.pytorch as pl
from torch.utils.data import DataLoader, IterableDataset
from torchrl.envs import EnvBase

from structrl.envs import EnvConfig, make_env
from structrl.plan import StackedPlans, stack_plans
from structrl.rl.actors import deterministic, sampling
from structrl.rl.rollout import Episodes, Progress, run_episodes
from structrl.seeding import Stream
from structrl.sims.base import Start


class RolloutData(pl.LightningDataModule):
    """Episodes of the current policy.

    Args:
        env: task files, number of environments, chunk, simulator arguments, reward.
        episodes_per_iteration: whole episodes of an iteration, over all ranks, tasks in turn.
        evaluate_episodes: episodes of a validation (ODE policy, the same starts and noise every time); how often is
            `trainer.check_val_every_n_epoch`. 0: none.
        seed: of starts, noise and minibatches; default: the config's `seed_everything`.

    Raises:
        ValueError: episodes that do not spread evenly over the ranks.
    """

    environment: EnvBase
    counts: dict[str, int]
    """Of the latest iteration: what `ChunkRunner.counts` counts."""

    def __init__(
        self,
        env: EnvConfig,
        episodes_per_iteration: int = 128,
        evaluate_episodes: int = 128,
        seed: int | None = None,
    ):
        super().__init__()
        if episodes_per_iteration < 1 or evaluate_episodes < 0:
            raise ValueError(
                f"data.episodes_per_iteration must be above 0 and data.evaluate_episodes 0 or more, not "
                f"{episodes_per_iteration} and {evaluate_episodes}"
            )
        self.env = env
        self.episodes_per_iteration, self.evaluate_episodes = episodes_per_iteration, evaluate_episodes
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        if self.seed < 0:
            raise ValueError(f"data.seed must be 0 or more, not {self.seed}")

    def make_environment(self) -> EnvBase:
        """The batch of environments of this rank."""
        return make_env(self.env, seed=self.seed)

    def setup(self, stage: str) -> None:
        """Start the simulator."""
        if not hasattr(self, "environment"):
            self.environment = self.make_environment()
        ranks = self.trainer.world_size  # type: ignore[union-attr]
        if self.episodes_per_iteration % ranks or self.evaluate_episodes % ranks:
            raise ValueError(
                f"{self.episodes_per_iteration} episodes per iteration and {self.evaluate_episodes} of an evaluation "
                f"do not spread evenly over {ranks} ranks"
            )

    def teardown(self, stage: str) -> None:
        """Close the simulator."""
        if hasattr(self, "environment"):
            self.environment.close()
            del self.environment

    @property
    def plans(self) -> StackedPlans:
        """The tasks' plans, padded."""
        return stack_plans(self.environment.simulator.tasks)

    def starts(self, stream: Stream, iteration: int) -> list[Start]:
        """This rank's episodes: numbers rank, rank + ranks, ... of the iteration; tasks in turn."""
        total = self.episodes_per_iteration if stream == Stream.START else self.evaluate_episodes
        rank, ranks = self.trainer.global_rank, self.trainer.world_size  # type: ignore[union-attr]
        tasks = len(self.environment.simulator.tasks)
        return [Start(e % tasks, -1, (self.seed, stream, iteration, e)) for e in range(rank, total, ranks)]

    def collect(self, iteration: int) -> Episodes:
        """The episodes of a training iteration."""
        module = cast(Any, self.trainer).lightning_module
        starts = self.starts(Stream.START, iteration)
        act = sampling(module.policy, starts, blind_to_time=module.ppo.time_limit == "bootstrap")
        before = dict(self.environment.runner.counts)
        with self._profile("collect"):
            episodes = run_episodes(self.environment, act, starts, progress=self._progress("collect", len(starts)))
        self.counts = {k: count - before[k] for k, count in self.environment.runner.counts.items()}
        return episodes

    def evaluate(self) -> Episodes:
        """The evaluation episodes."""
        module = cast(Any, self.trainer).lightning_module
        starts = self.starts(Stream.EVALUATE, 0)
        act = deterministic(module.policy, starts)
        with self._profile("evaluate"):
            return run_episodes(self.environment, act, starts, progress=self._progress("evaluate", len(starts)))

    def train_dataloader(self) -> DataLoader:
        """One batch: the episodes of iteration `trainer.current_epoch`."""
        return _loader(lambda: self.collect(cast(Any, self.trainer).current_epoch))

    def val_dataloader(self) -> DataLoader | list:
        """One batch: the evaluation episodes."""
        return _loader(self.evaluate) if self.evaluate_episodes else []

    def _progress(self, what: str, total: int) -> Progress | None:
        bar = getattr(cast(Any, self.trainer).progress_bar_callback, "episodes", None)
        return None if bar is None else bar(what, total)

    def _profile(self, what: str) -> Any:
        return cast(Any, self.trainer).profiler.profile(f"[structrl] {what}")


class _Once(IterableDataset):
    """One item, made when asked for. Sized, or Lightning would prefetch it, with the weights before an update."""

    def __init__(self, make: Callable[[], Episodes]):
        self.make = make

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Episodes]:
        yield self.make()


def identity(batch: Any) -> Any:
    """A collate function for batches that are complete already (a TensorDict would be taken for a dict)."""
    return batch


def _loader(make: Callable[[], Episodes]) -> DataLoader:
    return DataLoader(_Once(make), batch_size=None, collate_fn=identity)
