"""The run folder: what a run leaves behind, and what a resumed run finds.

config.yaml          the resolved config
code_state.txt       versions, git commit, status and diff of the code that ran; one section per (re)start
checkpoints/         last.ckpt and the two newest epochs
tensorboard/
"""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import structrl

CONFIG, CODE_STATE, CHECKPOINTS, TENSORBOARD = "config.yaml", "code_state.txt", "checkpoints", "tensorboard"
KEPT = 2  # newest checkpoints


def newest_checkpoint(folder: Path) -> Path | None:
    """`last.ckpt`, or the newest epoch if a kill fell between writing that and renewing the link; None without any."""
    last = folder / CHECKPOINTS / "last.ckpt"
    epochs = sorted((folder / CHECKPOINTS).glob("epoch-*.ckpt"))
    return last if last.is_file() else epochs[-1] if epochs else None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint of `structrl fit`; tensors stay on disk until they are used.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: damaged or cut off; the message names the checkpoint before it, which must be asked for.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError, OSError) as error:
        before = [p for p in sorted(path.parent.glob("epoch-*.ckpt")) if p.name != path.resolve().name]
        run = path.parent.parent
        instead = "there is no other in its folder"
        if before:
            instead = f"continue from the one before it with: structrl fit --resume {run} --ckpt_path {before[-1]}"
        what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path} is damaged or was cut off ({what}); {instead}") from None


class EveryEpoch(ModelCheckpoint):
    """Saves also after an epoch without an optimiser step: an iteration whose groups all taught nothing is over too."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning would take the unchanged step counter for a second call on one state."""
        self._last_global_step_saved = -1
        super().on_train_epoch_end(trainer, pl_module)


def checkpoint_callback(folder: Path) -> ModelCheckpoint:
    """Saves after every epoch (every iteration of RL), keeps the two newest, and links `last.ckpt` to the newest."""
    return EveryEpoch(
        dirpath=folder / CHECKPOINTS,
        filename="epoch-{epoch:05d}",
        auto_insert_metric_name=False,
        monitor="epoch",
        mode="max",
        save_top_k=KEPT,
        save_last="link",
        save_on_train_epoch_end=True,  # otherwise one iteration late where validation is not run every epoch
        enable_version_counter=False,
    )


def write_code_state(folder: Path, note: str = "") -> None:
    """Append a section on the code that is about to run, so that its result can be traced.

    Args:
        folder: the run folder.
        note: further lines, for instance what a resumed run changes in its config.
    """
    lines = [f"==== {datetime.now().astimezone().isoformat(timespec='seconds')}", "argv: " + " ".join(sys.argv)]
    lines.append(f"structrl {structrl.__version__}, python {sys.version.split()[0]}")
    lines.append(
        ", ".join(f"{p} {version(p)}" for p in ("torch", "torchrl", "tensordict", "lightning", "mujoco", "numpy"))
    )
    lines += [note] if note else []
    for repository in dict.fromkeys((Path(structrl.__file__).parent, Path.cwd())):
        lines += _git_state(repository)
    with open(folder / CODE_STATE, "a") as file:
        file.write("\n".join(lines) + "\n\n")


def _git_state(folder: Path) -> list[str]:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        top, commit = git("rev-parse", "--show-toplevel", "HEAD").split()
        return [f"-- git {top}", f"commit {commit}", git("status", "--short"), git("diff", "HEAD")]
    except (FileNotFoundError, subprocess.CalledProcessError):
        return [f"-- {folder} is in no git repository"]


def differences(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """Lines `key: old -> new` for every leaf in which two configs differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from differences(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))
    elif old != new:
        yield f"{key}: {old} -> {new}"
