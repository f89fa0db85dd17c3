"""Supervised flow matching on demonstrations: the warm start of RL.

Shapes: B batch, M x D model rows x dims.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from lightning import LightningModule
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions, flow_matching_loss
from structrl.policies.protocol import VLA, VLASpec
from structrl.seeding import generator, torch_seed


@dataclass(frozen=True)
class SFTOptions:
    """AdamW with linear warm-up and cosine decay.

    With a decay to 0 the last weights are as good as an average of weights would be.

    Attributes:
        lr: peak learning rate.
        warmup: steps of linear warm-up.
        final: learning rate at the end, as a fraction of the peak.
        weight_decay: of AdamW.
        clip: largest norm of the gradient.

    Raises:
        ValueError: for values out of range; the message names the key.
    """

    lr: float = 3e-3
    warmup: int = 100
    final: float = 0.0
    weight_decay: float = 1e-4
    clip: float = 1.0

    def __post_init__(self) -> None:
        for key, holds, what in (
            ("lr", self.lr > 0, "above 0"),
            ("warmup", self.warmup >= 0, "0 or more"),
            ("final", 0 <= self.final <= 1, "in [0, 1]"),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("clip", self.clip > 0, "above 0"),
        ):
            if not holds:
                raise ValueError(f"sft.{key} must be {what}, not {getattr(self, key)}")

    def factor(self, step: int, total: int) -> float:
        """Learning rate of optimiser step `step` of `total`, as a fraction of the peak."""
        progress = min(max(step - self.warmup, 0) / max(total - self.warmup, 1), 1.0)
        cosine = self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))
        return min((step + 1) / max(self.warmup, 1), 1.0) * cosine


class FlowMatching(LightningModule):
    """Trains the actor of an ActorCritic on demonstrations; its critic stays as initialised.

    Weights are in the checkpoint under "policy.", as PPO's are, so that `warm_start` reads them.

    Args:
        policy: builds the VLA from the environment's spec (`DemoData.spec`).
        flow: kept with the weights; the supervised loss does not depend on it.
        sft: optimiser and schedule.
    """

    policy: ActorCritic
    iterations_are_epochs = True  # for the progress bar of structrl.rl.cli
    reserved_trainer_keys: ClassVar[dict[str, str]] = {
        "gradient_clip_val": "use model.sft.clip",
        "gradient_clip_algorithm": "gradients are clipped by norm, see model.sft.clip",
    }

    def __init__(
        self,
        policy: Callable[[VLASpec], VLA] = CompactVLA,
        flow: FlowOptions = FlowOptions(),  # noqa: B008 - frozen
        sft: SFTOptions = SFTOptions(),
    ):
        super().__init__()
        self.make_policy, self.flow, self.sft = policy, flow, sft
        self.metrics: dict[str, float] = {}  # of the latest step, for the progress bar

    def configure_model(self) -> None:
        """Build the policy for the environment of the data; first weights are a function of the seed."""
        if hasattr(self, "policy"):
            return
        data = cast(Any, self.trainer).datamodule
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(data.seed))
            self.policy = ActorCritic(self.make_policy(data.spec), self.flow)
        for name, parameter in self.policy.named_parameters():
            if "critic" in name:  # no gradient reaches it; DistributedDataParallel must not wait for one
                parameter.requires_grad_(False)

    def training_step(self, batch: TensorDict, index: int) -> Tensor:
        """Flow-matching loss of one batch of `DemoData`."""
        vla = self.policy.vla
        # Rows are numbered over all ranks, and a generator fills rows in order: any split draws the same numbers.
        counter, row_B, rows = batch["counter"][0].tolist(), batch["row"].cpu().numpy(), int(batch["row"].max()) + 1
        noise = generator(*counter, 1).standard_normal((rows, vla.rows, vla.dims), dtype=np.float32)[row_B]
        time = generator(*counter, 2).random(rows, dtype=np.float32)[row_B]
        noise_BMD, time_B = (torch.from_numpy(draw).to(self.device) for draw in (noise, time))
        loss = flow_matching_loss(
            vla,
            batch[keys.OBSERVATION],
            batch[keys.TASK].squeeze(-1),
            batch[keys.ACTION],
            batch["pad"],
            noise_BMD,
            time_B,
        )
        self.log("losses/flow_matching", loss, sync_dist=True, batch_size=len(batch))
        self.metrics["losses/flow_matching"] = loss.item()
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW and its schedule over the whole run."""
        parameters = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=self.sft.lr, weight_decay=self.sft.weight_decay, fused=True)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.sft.factor(step, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """The config's options count, also where a checkpoint brought back those of before."""
        total = int(self.trainer.estimated_stepping_batches)
        for config in self.trainer.lr_scheduler_configs:
            schedule = cast(torch.optim.lr_scheduler.LambdaLR, config.scheduler)
            schedule.base_lrs = [self.sft.lr] * len(schedule.base_lrs)
            for group in schedule.optimizer.param_groups:
                lr = self.sft.lr * self.sft.factor(schedule.last_epoch, total)
                group.update(initial_lr=self.sft.lr, lr=lr, weight_decay=self.sft.weight_decay)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip by norm, as `sft.clip` says."""
        self.clip_gradients(optimizer, gradient_clip_val=self.sft.clip, gradient_clip_algorithm="norm")
