"""Checkpoints that are complete or not there, whenever the process ends or the disk fills up."""

import contextlib
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes into a file beside the checkpoint and renames it when it is on the disk.

    (Lightning's own writes it in the system's folder of temporary files. From there to another file system, moving is
    copying: a kill in the middle leaves half a checkpoint under the final name.)
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            OSError: the disk is full, or the folder cannot be written; nothing is left of the checkpoint.
        """
        if storage_options is not None:
            raise TypeError("there are no storage options for checkpoints on a file system")
        final = Path(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        for left in final.parent.glob(".*.writing"):  # by a process that was killed
            left.unlink()
        fresh = final.with_name(f".{final.name}.writing")
        try:
            with open(fresh, "wb") as file:
                try:
                    torch.save(checkpoint, file)
                except RuntimeError as error:  # torch hides behind it what the system said about a write
                    raise OSError(f"{final}: cannot be written: {error.__context__ or error}") from error
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(final)
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        if os.name == "posix":
            folder = os.open(final.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # the new name, too
            finally:
                os.close(folder)


class LogsFirst(Callback):
    """What a checkpoint has behind it is in the logs: they are flushed before it is written."""

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict) -> None:
        """Flush."""
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.save()
