"""The data of PPO and GRPO: an epoch is an iteration is one batch, collected with the weights of the moment."""

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import lightning.pytorch as pl
from torch.utils.data import DataLoader, IterableDataset
from torchrl.envs import EnvBase

from structrl.envs import EnvConfig, Halves, make_halves
from structrl.plan import StackedPlans, stack_plans
from structrl.rl.actors import deterministic, sampling
from structrl.rl.groups import GroupStarts
from structrl.rl.lockstep import in_lockstep
from structrl.rl.rollout import Act, Episodes, Progress, run_episodes
from structrl.rl.sharding import is_sharded
from structrl.seeding import Stream
from structrl.sims.base import Start


class RolloutData(pl.LightningDataModule):
    """Episodes of the current policy.

    Args:
        env: task files, number of environments, chunk, simulator arguments, reward.
        episodes_per_iteration: whole episodes of an iteration, over all ranks, tasks in turn (with GRPO: of a round, in
            groups).
        evaluate_episodes: episodes of a validation (ODE policy, the same starts and noise every time); how often is
            `trainer.check_val_every_n_epoch`. 0: none.
        seed: of starts, noise and minibatches; default: the config's `seed_everything`.

    Raises:
        ValueError: episodes that do not spread evenly over the ranks.
    """

    environment: EnvBase | Halves
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

    def make_environment(self) -> EnvBase | Halves:
        """The batch of environments of this rank."""
        return make_halves(self.env, seed=self.seed)

    def setup(self, stage: str) -> None:
        """Start the simulator."""
        if not hasattr(self, "environment"):
            self.environment = self.make_environment()
        ranks = self.trainer.world_size  # type: ignore[union-attr]
        group = self._group_size
        if self.episodes_per_iteration % (ranks * group) or self.evaluate_episodes % ranks:
            groups = f" in groups of {group}" if group > 1 else ""
            raise ValueError(
                f"data.episodes_per_iteration {self.episodes_per_iteration}{groups} and data.evaluate_episodes "
                f"{self.evaluate_episodes} do not spread evenly over {ranks} ranks"
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

    @property
    def _group_size(self) -> int:
        return getattr(cast(Any, self.trainer).lightning_module, "group_size", 1)

    def numbers(self, stream: Stream, round_: int = 0) -> list[int]:
        """This rank's episodes by their numbers in the iteration; groups are dealt to the ranks whole."""
        training = stream == Stream.START
        total = self.episodes_per_iteration if training else self.evaluate_episodes
        group = self._group_size if training else 1
        rank, ranks = self.trainer.global_rank, self.trainer.world_size  # type: ignore[union-attr]
        firsts = range(round_ * total + rank * group, (round_ + 1) * total, ranks * group)
        return [first + member for first in firsts for member in range(group)]

    def starts(self, stream: Stream, iteration: int, round_: int = 0) -> list[Start]:
        """Where they begin: a start per group, tasks in turn."""
        tasks, group = len(self.environment.simulator.tasks), self._group_size if stream == Stream.START else 1
        places = [number // group for number in self.numbers(stream, round_)]
        return [Start(e % tasks, -1, (self.seed, stream, iteration, e)) for e in places]

    def collect(self, iteration: int) -> Episodes:
        """The episodes of a training iteration."""
        module = cast(Any, self.trainer).lightning_module
        module.begin(iteration)
        before = dict(self.environment.counts)
        rounds: list[Episodes] = []
        with self._profile("collect"):
            while not rounds or module.wants_more(rounds):
                rounds.append(self._run_round(module, iteration, len(rounds)))
        self.counts = {k: count - before[k] for k, count in self.environment.counts.items()}
        return module.select(rounds)

    def _run_round(self, module: Any, iteration: int, round_: int) -> Episodes:
        starts = self.starts(Stream.START, iteration, round_)
        act = sampling(module.policy, starts, self.numbers(Stream.START, round_), blind_to_time=module.blind_to_time)
        return self._run("collect", act, starts, grouped=module.group_size > 1)

    def evaluate(self) -> Episodes:
        """The evaluation episodes."""
        module = cast(Any, self.trainer).lightning_module
        starts = self.starts(Stream.EVALUATE, 0)
        act = deterministic(module.policy, starts)
        with self._profile("evaluate"):
            return self._run("evaluate", act, starts)

    def _run(self, what: str, act: Act, starts: list[Start], grouped: bool = False) -> Episodes:
        """Run the episodes; in step with the other ranks where calls of the policy communicate."""
        module = cast(Any, self.trainer).lightning_module

        def run(act: Act) -> Episodes:
            if grouped:
                act = GroupStarts(act, self.environment, starts)
            return run_episodes(self.environment, act, starts, progress=self._progress(what, len(starts)))

        return in_lockstep(run, act, module.sum) if is_sharded(module.policy) else run(act)

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
