"""Ranks that are to train together must run the same thing."""

import hashlib
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

import structrl


class RanksError(RuntimeError):
    """The ranks of a run differ in what they run."""


class RanksAgree(Callback):
    """Compares, when training starts, what ranks could only disagree about by mistake.

    Nodes that see another config, another version or, through a slow shared file system, an older checkpoint would
    otherwise hang in the middle of an iteration, or average gradients of different runs.

    Args:
        config: the resolved config.
    """

    def __init__(self, config: str):
        self.config = config

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare.

        Raises:
            RanksError: on every rank; names what differs, and the ranks that differ from the first.
        """
        if trainer.world_size == 1:
            return
        mine: dict[str, Any] = {
            "config": self.config,
            "version of structrl or torch": (structrl.__version__, torch.__version__),
            "checkpoint that the run continues from": (trainer.current_epoch, trainer.global_step),
        }
        digests = [hashlib.sha256(repr(value).encode()).digest()[:8] for value in mine.values()]
        row = torch.tensor(
            [int.from_bytes(d, "big", signed=True) for d in digests], device=trainer.strategy.root_device
        )
        rows: Any = trainer.strategy.all_gather(row)
        for what, column in zip(mine, rows.view(trainer.world_size, -1).T.tolist(), strict=True):
            others = [rank for rank, digest in enumerate(column) if digest != column[0]]
            if others:
                raise RanksError(f"the {what} of rank {', '.join(map(str, others))} is not that of rank 0")
