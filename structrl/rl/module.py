"""PPO on whole episodes, as a LightningModule: one epoch = one iteration = one batch, optimised by hand.

Shapes: n chunks and P episodes of this rank, B chunks of a minibatch.
"""

import time
from collections.abc import Callable
from typing import Any, cast

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import VLA, VLASpec, env_spec
from structrl.rl.actors import hide_time
from structrl.rl.advantages import moments, normalise
from structrl.rl.batch import (
    ADVANTAGE,
    VALUE_TARGET,
    add_advantages,
    add_weights,
    minibatches,
    number_chunks,
    select_inputs,
)
from structrl.rl.losses import explained_variance
from structrl.rl.metrics import Metrics, episode_metrics, layout
from structrl.rl.options import PPOOptions
from structrl.rl.rollout import Episodes
from structrl.rl.update import Update
from structrl.rl.warm_start import load_actor
from structrl.seeding import Stream, normal, torch_seed

SHIFT_SAMPLES = 256  # chunks at which `policy/ode_shift` is measured


class PPO(pl.LightningModule):
    """Proximal policy optimisation of a flow VLA, one ratio per action chunk (arXiv 1707.06347, 2510.25889).

    Needs a RolloutData as data. Weights are in the checkpoint under "policy."; besides weights, optimiser and
    Lightning's counters it holds only `env_steps`: every random number is a function of seed and iteration.

    Args:
        policy: builds the VLA from the environment's spec.
        flow: how action chunks are drawn.
        ppo: everything else.
        warm_start: checkpoint of a supervised or earlier run: its weights, without the critic's, are loaded first.

    Raises:
        FileNotFoundError: no such warm start.
        ValueError: a warm start of another architecture.
    """

    iterations_are_epochs = True  # the progress bar counts them
    policy: ActorCritic

    def __init__(
        self,
        policy: Callable[[VLASpec], VLA] = CompactVLA,
        flow: FlowOptions = FlowOptions(),  # noqa: B008 - frozen
        ppo: PPOOptions = PPOOptions(),  # noqa: B008 - frozen
        warm_start: str | None = None,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.make_policy, self.flow, self.ppo, self.warm_start = policy, flow, ppo, warm_start
        self.env_steps = 0  # of training episodes, over all ranks
        self.metrics: Metrics = {}  # of the latest iteration, for progress bars

    # -- Lightning's hooks, in the order in which they run -------------------------------------------------------------

    def configure_model(self) -> None:
        """Build the policy for the environment; first weights are a function of the seed."""
        if hasattr(self, "policy"):
            return
        data = self._data
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(data.seed))
            self.policy = ActorCritic(self.make_policy(env_spec(data.environment)), self.flow)
        if self.warm_start is not None and cast(Any, self.trainer).ckpt_path is None:
            load_actor(self.policy, self.warm_start)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW with one group for the actor, one for the critic (two optimisers would count every step twice)."""
        named = [(name, p) for name, p in self.policy.named_parameters() if p.requires_grad]
        ppo = self.ppo
        return torch.optim.AdamW(
            [
                {"params": [p for name, p in named if "critic" not in name], "lr": ppo.learning_rate},
                {"params": [p for name, p in named if "critic" in name], "lr": ppo.critic_learning_rate},
            ],
            eps=ppo.adam_eps,
            weight_decay=ppo.weight_decay,
        )

    def _apply_optimizer_options(self) -> None:
        """The config's options count, also where a checkpoint brought back those of before."""
        ppo, optimizer = self.ppo, cast(Any, self.optimizers())
        for group, lr in zip(optimizer.param_groups, (ppo.learning_rate, ppo.critic_learning_rate), strict=True):
            group.update(lr=lr, eps=ppo.adam_eps, weight_decay=ppo.weight_decay)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the counter of environment steps."""
        checkpoint["structrl"] = {"env_steps": self.env_steps}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it back.

        Raises:
            ValueError: the checkpoint is not of such a run.
        """
        if "structrl" not in checkpoint:
            raise ValueError(
                "the checkpoint is not of a PPO run; weights of a supervised run go into model.warm_start, and "
                "structrl evaluate runs their episodes"
            )
        self.env_steps = checkpoint["structrl"]["env_steps"]

    def on_fit_start(self) -> None:
        """Tell TensorBoard what belongs together."""
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger) and self.trainer.is_global_zero:
                logger.experiment.add_custom_scalars(layout(self._data.plans))

    def on_train_start(self) -> None:
        """Evaluate the policy that training starts from, so that curves have their point at 0."""
        self._apply_optimizer_options()
        if self.trainer.current_epoch == 0 and self._data.evaluate_episodes:
            self.validation_step(self._data.evaluate(), 0)

    def training_step(self, episodes: Episodes, index: int) -> None:
        """Update the policy on the iteration's episodes, and write what happened."""
        with cast(Any, self.trainer).profiler.profile("[structrl] update"):
            clock = time.perf_counter()
            chunks, numbers, total = self._prepare(episodes)
            probe = self._probe(chunks)
            before = self._ode(probe)
            update = Update(self, warming_up=self.trainer.current_epoch < self.ppo.critic_warmup)
            for epoch in range(self.ppo.epochs):
                parts = minibatches(
                    numbers, total, self.ppo.minibatches, self._data.seed, self.trainer.current_epoch, epoch
                )
                if not all(update.step(chunks, rows) for rows in parts):
                    break
            losses = update.metrics()
            shift = self.sum(torch.stack([(self._ode(probe) - before).square().mean(), torch.ones(())]))
            seconds = {**episodes.seconds, "update": time.perf_counter() - clock}

        table = self.gather(episodes)
        steps = int(table["length"].sum())
        self.env_steps += steps
        self.write(
            self._episode_metrics(table)
            | losses
            | self._explained(chunks)
            | {f"time/{k}": v for k, v in seconds.items()}
            | {
                "policy/ode_shift": (shift[0] / shift[1]).sqrt().item(),
                "charts/SPS": steps / sum(seconds.values()),
                "charts/chunks": total,
                "charts/iteration": self.trainer.current_epoch,
                **{f"env/{k}": float(self.sum(torch.tensor(v))) for k, v in self._data.counts.items()},
            }
        )

    def validation_step(self, episodes: Episodes, index: int) -> None:
        """Write what the evaluation episodes say, under `evaluate/`."""
        table = self.gather(episodes)
        metrics = {f"evaluate/{k}": v for k, v in self._episode_metrics(table).items()}
        self.write(metrics | {"time/evaluate": sum(episodes.seconds.values())})

    # -- what the hooks use --------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Any:
        return cast(Any, self.trainer).datamodule

    def sum(self, x: Tensor) -> Tensor:
        """Sum over ranks."""
        return cast(Tensor, self.trainer.strategy.reduce(x.to(self.device), reduce_op="sum"))

    def gather(self, episodes: Episodes) -> TensorDict:
        """The table's rows of all ranks, rank by rank; ranks may have dropped different episodes."""
        if self.trainer.world_size == 1:
            return episodes.table

        def everyone(x: Tensor) -> Tensor:
            return cast(Tensor, self.all_gather(episodes.by_start(x))).flatten(0, 1).to(x.device)

        there = everyone(torch.ones(len(episodes), dtype=torch.bool))
        return episodes.table.apply(everyone, batch_size=[]).auto_batch_size_(1)[there]

    def write(self, metrics: Metrics) -> None:
        """To the loggers at x = environment steps, to callbacks (monitors, progress bars) under the same names."""
        self.metrics = self.metrics | metrics
        for logger in self.loggers:
            logger.log_metrics(metrics, step=self.env_steps)
        self.trainer.callback_metrics.update({k: torch.tensor(float(v)) for k, v in metrics.items()})

    def _episode_metrics(self, table: TensorDict) -> Metrics:
        env = self._data.env
        return episode_metrics(table, self._data.plans, env.chunk if env.reward.clock == "chunk" else 1)

    def _prepare(self, episodes: Episodes) -> tuple[TensorDict, Tensor, int]:
        """Inputs of the update, the numbers of this rank's chunks among all, and the number of all chunks."""
        final_value = None
        if self.ppo.time_limit == "bootstrap":
            final_value = self._final_value(episodes)
        add_advantages(episodes, self.ppo, final_value)
        add_weights(episodes, self.ppo, self._data.plans.horizon, self._data.environment.chunk)
        chunks = select_inputs(episodes.chunks)
        if self.ppo.normalise_advantages:
            advantage = chunks[ADVANTAGE]
            everyone = self.sum(moments(advantage, torch.ones_like(advantage, dtype=torch.bool))).cpu()
            chunks[ADVANTAGE] = normalise(advantage, everyone)
        counts = (
            cast(Tensor, self.all_gather(episodes.by_start(episodes.table["chunks"])))
            .view(self.trainer.world_size, -1)
            .cpu()
        )
        return chunks, *number_chunks(counts, self.trainer.global_rank)

    @torch.no_grad()
    def _final_value(self, episodes: Episodes) -> Tensor:
        """Value of the observation after each episode, [P]."""
        td = hide_time(episodes.final).to(self.device)
        context = self.policy.vla("encode", td[keys.OBSERVATION], td[keys.TASK].squeeze(-1))
        return self.policy.vla("value", context, td.get(keys.REWARD_STATE)).float().squeeze(-1).cpu()

    def _probe(self, chunks: TensorDict) -> tuple[TensorDict, Tensor]:
        """Some of the iteration's observations, spread evenly, each with its fixed noise."""
        rows = torch.linspace(0, len(chunks) - 1, min(SHIFT_SAMPLES, len(chunks))).long()
        iteration, rank = self.trainer.current_epoch, self.trainer.global_rank
        counters = [(self._data.seed, Stream.NOISE, iteration, rank, 0, i) for i in range(len(rows))]
        vla = self.policy.vla
        noise = torch.from_numpy(normal(np.array(counters), (vla.rows, vla.dims)))
        return chunks[rows].select(keys.OBSERVATION, keys.TASK).to(self.device), noise.to(self.device)

    def _ode(self, probe: tuple[TensorDict, Tensor]) -> Tensor:
        return self.policy.act_ode(*probe)[keys.ACTION]

    def _explained(self, chunks: TensorDict) -> Metrics:
        """Share of the returns' variance that the values of the rollout explained, over all ranks."""
        explained = explained_variance(chunks[keys.VALUE].squeeze(-1), chunks[VALUE_TARGET], self.sum)
        return {} if explained.isnan() else {"losses/explained_variance": explained.item()}
