"""On-policy learning on whole episodes as a LightningModule: what PPO and GRPO share.

One epoch = one iteration = one batch, optimised by hand.

Shapes: n chunks and P episodes of this rank, B chunks of a minibatch.
"""

import copy
import time
from collections.abc import Callable
from typing import Any, ClassVar, cast

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import VLA, VLASpec, env_spec
from structrl.rl.batch import minibatches, number_chunks
from structrl.rl.components import RewardHook, reweigh
from structrl.rl.metrics import Metrics, episode_metrics, layout
from structrl.rl.options import UpdateOptions
from structrl.rl.rollout import Episodes
from structrl.rl.sharding import FSDP2, fill_state, is_sharded, shard
from structrl.rl.update import Update
from structrl.rl.warm_start import load_actor
from structrl.seeding import Stream, normal, torch_seed

SHIFT_SAMPLES = 256  # chunks at which `policy/ode_shift` is measured


class OnPolicy(pl.LightningModule):
    """Updates a flow VLA on the episodes of a RolloutData, one ratio per action chunk (arXiv 1707.06347, 2510.25889).

    Weights are in the checkpoint under "policy."; besides weights, optimiser and Lightning's counters (which also say
    where noise annealing and the critic's warm-up are) it holds `env_steps` and, with `kl_weight`, the reference
    policy: every random number is a function of seed and iteration.

    Subclasses say what an iteration's episodes are worth (`prepare`) and which of them are run (`group_size`,
    `wants_more`, `select`).

    Args:
        policy: builds the VLA from the environment's spec.
        flow: how action chunks are drawn.
        options: of the update.
        warm_start: checkpoint of a supervised or earlier run: its weights, without the critic's, are loaded first.
        reward_hook: may rewrite the reward's components after each rollout, see `structrl.rl.components`.

    Raises:
        FileNotFoundError: no such warm start.
        ValueError: a warm start of another architecture; options that contradict each other.
    """

    iterations_are_epochs = True  # the progress bar counts them
    has_critic = True
    shardable = True
    blind_to_time = False
    group_size = 1
    reserved_trainer_keys: ClassVar[dict[str, str]] = {
        "log_every_n_steps": "RL writes its metrics every iteration",
        "gradient_clip_val": "use max_grad_norm of the update's options",
        "gradient_clip_algorithm": "use max_grad_norm of the update's options",
        "accumulate_grad_batches": "use micro_batch of the update's options",
        "precision": "use model.flow.precision, which holds for acting and learning alike",
    }
    policy: ActorCritic
    reference: ActorCritic | None

    def __init__(
        self,
        policy: Callable[[VLASpec], VLA],
        flow: FlowOptions,
        options: UpdateOptions,
        warm_start: str | None,
        reward_hook: RewardHook | None,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.make_policy, self.flow, self.options, self.warm_start = policy, flow, options, warm_start
        self.reward_hook = reward_hook
        if options.entropy_weight and flow.sampler != "learned":
            raise ValueError(
                f"{options.key}.entropy_weight has no effect with flow.sampler '{flow.sampler}', whose noise is fixed; "
                "use 'learned'"
            )
        self.env_steps = 0  # of training episodes, over all ranks
        self.metrics: Metrics = {}  # of the latest iteration, for progress bars
        self.__dict__["reference"] = None  # past nn.Module: it is neither trained nor wrapped nor saved as weights

    # -- what subclasses say -------------------------------------------------------------------------------------------

    def prepare(self, episodes: Episodes) -> tuple[TensorDict, Tensor, Metrics]:
        """Inputs of the update [n], how many of them belong to each episode, int64 [P], and metrics."""
        raise NotImplementedError

    def warming_up(self) -> bool:
        """Whether only the critic learns in this iteration."""
        return False

    def begin(self, iteration: int) -> None:
        """Before the episodes of an iteration."""
        self.policy.flow = self.flow.at(iteration)

    def wants_more(self, rounds: list[Episodes]) -> bool:
        """Whether another round of episodes is to be run in this iteration; the same on all ranks."""
        return False

    def select(self, rounds: list[Episodes]) -> Episodes:
        """The iteration's episodes."""
        return rounds[0]

    # -- Lightning's hooks, in the order in which they run -------------------------------------------------------------

    def configure_model(self) -> None:
        """Build the policy for the environment; first weights are a function of the seed."""
        if hasattr(self, "policy"):
            return
        data = self._data
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(data.seed))
            self.policy = ActorCritic(self.make_policy(env_spec(data.environment)), self.flow, self.has_critic)
        if self.warm_start is not None and cast(Any, self.trainer).ckpt_path is None:
            load_actor(self.policy, self.warm_start)
        if not self.has_critic:
            for name, parameter in self.policy.named_parameters():
                if "critic" in name:  # distributed strategies must not wait for its gradient
                    parameter.requires_grad_(False)
        if self.options.kl_weight:
            reference = copy.deepcopy(self.policy).requires_grad_(False)
            reference.critic = False
            self.__dict__["reference"] = reference  # whole on every rank
        if isinstance(self.trainer.strategy, FSDP2):
            shard(self.policy, self.trainer.strategy)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Options of the optimiser's groups, by role: the actor's, then the critic's."""
        options = self.options
        common = {"eps": options.adam_eps, "weight_decay": options.weight_decay}
        return [{"lr": options.learning_rate, **common}]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW with one group for the actor, one for the critic (two optimisers would count every step twice)."""
        named = [(name, p) for name, p in self.policy.named_parameters() if p.requires_grad]
        members = [[p for name, p in named if ("critic" in name) == critic] for critic in (False, True)]
        options = self.parameter_groups()
        optimizer = torch.optim.AdamW([{"params": p, **o} for p, o in zip(members, options, strict=False)])
        if is_sharded(self.policy):
            fill_state(optimizer)
        return optimizer

    def _apply_optimizer_options(self) -> None:
        """The config's options count, also where a checkpoint brought back those of before."""
        optimizer = cast(Any, self.optimizers())
        for group, options in zip(optimizer.param_groups, self.parameter_groups(), strict=True):
            group.update(options)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the counter of environment steps and the reference policy."""
        checkpoint["structrl"] = {"env_steps": self.env_steps}
        if self.reference is not None:
            checkpoint["structrl"]["reference"] = self.reference.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take them back.

        Raises:
            ValueError: the checkpoint is not of such a run, or has no reference policy where one is wanted.
        """
        if "structrl" not in checkpoint:
            raise ValueError(
                "the checkpoint is not of a PPO or GRPO run; weights of a supervised run go into model.warm_start, and "
                "structrl evaluate runs their episodes"
            )
        self.env_steps = checkpoint["structrl"]["env_steps"]
        if self.reference is not None:
            if "reference" not in checkpoint["structrl"]:
                raise ValueError(
                    f"{self.options.key}.kl_weight was 0 when the run began: its checkpoints hold no reference policy; "
                    "begin a new run"
                )
            self.reference.load_state_dict(checkpoint["structrl"]["reference"])

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
            self.trainer.strategy.barrier("rollout")  # what follows waits for the slowest rank anyway
            waited, clock = time.perf_counter() - clock, time.perf_counter()
            extra = reweigh(episodes, self.options.reward_weights, self.reward_hook)
            chunks, counts, prepared = self.prepare(episodes)
            numbers, total = number_chunks(
                self._by_rank(episodes.by_start(counts)), self.trainer.global_rank, self.group_size
            )
            probe = self._probe(episodes.chunks)
            before = self._ode(probe)
            update = Update(self, warming_up=self.warming_up())
            for epoch in range(self.options.epochs if total else 0):
                parts = minibatches(
                    numbers, total, self.options.minibatches, self._data.seed, self.trainer.current_epoch, epoch
                )
                if not all(update.step(chunks, rows) for rows in parts):
                    break
            losses = update.metrics()
            shift = self.sum(torch.stack([(self._ode(probe) - before).square().mean(), torch.ones(())]))
            seconds = {**episodes.seconds, "update": time.perf_counter() - clock}
            seconds["idle"] += waited
            iteration = seconds["collect"] + waited + seconds["update"]
            policy = seconds["infer"] + seconds["update"]
            idle_R = self._by_rank(torch.tensor([1 - policy / iteration], device=self.device)).flatten()

        table = self.gather(episodes)
        steps = int(table["length"].sum())
        self.env_steps += steps
        self.write(
            self._episode_metrics(table)
            | losses
            | prepared
            | extra
            | {f"time/{k}": v for k, v in seconds.items()}
            | {f"time/idle_share/rank_{rank}": share for rank, share in enumerate(idle_R.tolist())}
            | {
                "policy/ode_shift": (shift[0] / shift[1]).sqrt().item(),
                "policy/noise": self.policy.flow.noise,
                "charts/SPS": steps / iteration,
                "charts/chunks": total,
                "charts/iteration": self.trainer.current_epoch,
                **{f"env/{k}": float(self.sum(torch.tensor(v))) for k, v in self._data.counts.items()},
            }
        )

    def validation_step(self, episodes: Episodes, index: int) -> None:
        """Write what the evaluation episodes say, under `evaluate/`."""
        table = self.gather(episodes)
        metrics = {f"evaluate/{k}": v for k, v in self._episode_metrics(table).items()}
        metrics["evaluate/charts/episodes"] = float(len(table))  # what rates are shares of; lost ones are not there
        metrics["evaluate/env/dropped"] = float(self.sum(torch.tensor(float(episodes.dropped))))
        self.write(metrics | {"time/evaluate": episodes.seconds["collect"]})

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
        return episode_metrics(table, self._data.plans, env.chunk if env.reward.resolved().clock == "chunk" else 1)

    def _by_rank(self, x: Tensor) -> Tensor:
        """A column with a row for each of this rank's starts, of all ranks, [ranks, starts]."""
        return cast(Tensor, self.all_gather(x)).view(self.trainer.world_size, -1).cpu()

    def _probe(self, chunks: TensorDict) -> tuple[TensorDict, Tensor]:
        """Some of the iteration's observations, spread evenly, each with its fixed noise."""
        rows = torch.linspace(0, len(chunks) - 1, min(SHIFT_SAMPLES, len(chunks))).long()
        iteration, rank = self.trainer.current_epoch, self.trainer.global_rank
        counters = [(self._data.seed, Stream.NOISE, iteration, rank, 0, i) for i in range(len(rows))]
        vla = self.policy.vla
        noise = torch.from_numpy(normal(np.array(counters), (vla.rows, vla.dims)))
        return chunks[rows].select(keys.OBSERVATION, keys.TASK).to(self.device), noise.to(self.device)

    def _ode(self, probe: tuple[TensorDict, Tensor]) -> Tensor:
        return self.policy("act_ode", *probe)[keys.ACTION]
