"""`structrl fit` and `structrl validate`: LightningCLI on a YAML config, in a run folder that is never overwritten."""

import inspect
import logging
import os
import shutil
import signal
import sys
import warnings
from argparse import ArgumentError
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
import yaml
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden

from structrl.rl.checkpoints import AtomicCheckpointIO, LogsFirst
from structrl.rl.config_errors import UsageError, check_overrides, explain, spell_nulls
from structrl.rl.preemption import SIGNALS, Preempted, Preemption, requeue
from structrl.rl.progress import IterationBar
from structrl.rl.ranks import RanksAgree
from structrl.rl.run_folder import (
    CHECKPOINTS,
    CONFIG,
    TENSORBOARD,
    checkpoint_callback,
    differences,
    newest_checkpoint,
    read_checkpoint,
    write_code_state,
)
from structrl.rl.sharding import check_strategy

DESCRIPTION = """Every key of the config can be overridden on the command line.

structrl fit --config X.yaml [--KEY VALUE ...]           start a run in its trainer.default_root_dir
structrl fit --config X.yaml --resume [--KEY VALUE ...]  continue that run
structrl fit --resume RUN [--KEY VALUE ...]              continue the run in folder RUN with the config it saved
structrl fit --resume RUN --ckpt_path FILE               ... from another checkpoint than its newest
structrl validate --config X.yaml [--ckpt_path FILE]     evaluation episodes of a checkpoint (default: RUN's last)
"""
TRAINER_DEFAULTS = {
    "num_sanity_val_steps": 0,  # it would run episodes before training
    "use_distributed_sampler": False,  # episodes are dealt to the ranks by number
    "log_every_n_steps": 1,
    "enable_model_summary": False,
}
QUIET = (  # warnings of Lightning that our way of using it makes pointless
    ".*does not have many workers.*",
    ".*`__len__` defined.*",
    ".*LeafSpec.*",
    ".*LightningCLI's args parameter.*",
    ".*exists and is not empty.*",
    ".*across ranks is zero.*",
)


class _StructrlCLI(LightningCLI):
    """LightningCLI with our defaults and run folder, without subcommands."""

    def __init__(self, argv: list[str], signals: Preemption, resume: bool = False):
        self.signals, self.resume = signals, resume
        self.checkpoint: str | Path | None = None  # to resume from
        super().__init__(
            run=False,
            args=argv,
            save_config_callback=None,  # `fit` saves it itself
            trainer_defaults=dict(TRAINER_DEFAULTS),
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_kwargs={"description": DESCRIPTION, "exit_on_error": False},
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--threads",
            type=int,
            default=1,
            help="torch.set_num_threads: small layers on few cores are many times slower with more than 1",
        )
        parser.add_argument(
            "--ckpt_path", type=str | None, default=None, help="checkpoint to validate, or to resume from"
        )

    def before_instantiate_classes(self) -> None:
        torch.set_num_threads(self.config.threads)
        # where it is not set, Lightning would share out all cores to a node's ranks, whatever `threads` says
        os.environ.setdefault("OMP_NUM_THREADS", str(self.config.threads))

    @property
    def folder(self) -> Path:
        root = self.config.trainer.default_root_dir
        if root is None:
            raise UsageError("set trainer.default_root_dir in the config: the folder in which the run is kept")
        return Path(root)

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        config = self.config_init.trainer
        self._check_reserved(config)
        purge: dict[str, Any] = {}
        if self.resume:
            self.checkpoint = self.config.ckpt_path or newest_checkpoint(self.folder)
        if self.checkpoint is not None:
            # what a killed run wrote after its last checkpoint will be written again
            purge = {"purge_step": _points_written(read_checkpoint(Path(self.checkpoint))) + 1}
        elif self.resume:
            purge = {"purge_step": 0}  # killed in its first iteration: everything will be
        given = config.callbacks or []
        given = given if isinstance(given, list) else [given]
        callbacks: list[Callback] = [*given, self.signals, LogsFirst()]
        callbacks.append(RanksAgree(_dump(self)))
        if config.enable_checkpointing is not False and not any(isinstance(c, ModelCheckpoint) for c in callbacks):
            callbacks.append(checkpoint_callback(self.folder))
        if config.enable_progress_bar is not False and getattr(self.model, "iterations_are_epochs", False):
            callbacks.append(IterationBar())
        logger = config.logger
        if logger is None or logger is True:
            logger = TensorBoardLogger(self.folder, name="", version=TENSORBOARD, default_hp_metric=False, **purge)
        if SLURMEnvironment.detect() and not config.plugins:  # its requeueing saves in the middle of an iteration
            kwargs["plugins"] = [SLURMEnvironment(auto_requeue=False)]
        trainer = super().instantiate_trainer(callbacks=callbacks, logger=logger, **kwargs)
        check_strategy(trainer.strategy, self.model)
        trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def _check_reserved(self, config: Any) -> None:
        """Keys of the trainer that would do nothing here, or break the run, are mistakes."""
        defaults = {name: parameter.default for name, parameter in inspect.signature(pl.Trainer).parameters.items()}
        for key, instead in getattr(self.model, "reserved_trainer_keys", {}).items():
            if config[key] not in (TRAINER_DEFAULTS.get(key, defaults[key]), defaults[key]):
                raise UsageError(
                    f"trainer.{key} has no effect with {type(self.model).__name__}: {instead}; remove trainer.{key}"
                )


def _points_written(checkpoint: dict[str, Any]) -> int:
    """The last x of a checkpoint's curves: environment steps in RL, optimiser steps in the warm start."""
    own = checkpoint.get("structrl")
    return own["env_steps"] if own else checkpoint["global_step"] - 1


def fit(argv: list[str]) -> int:
    """`structrl fit`: exit code 0 also after SIGTERM, 1 for a failure, 2 for a mistake in config or command line."""
    return _guarded("fit", _fit, argv)


def validate(argv: list[str]) -> int:
    """`structrl validate`: one validation, printed."""
    return _guarded("validate", _validate, argv)


def _fit(argv: list[str], signals: Preemption) -> None:
    argv, resume, folder = _take_resume(argv)
    if folder is not None:
        if not (folder / CONFIG).is_file():
            raise UsageError(f"--resume {folder}: there is no {CONFIG} in this folder")
        argv = ["--config", str(folder / CONFIG), *argv, f"--trainer.default_root_dir={folder}"]
    cli = _parse(argv, signals, resume)
    if not resume and cli.config.ckpt_path is not None:
        raise UsageError("--ckpt_path goes with --resume; the weights to start from are model.warm_start")
    if not resume and newest_checkpoint(cli.folder) is not None:
        raise UsageError(
            f"{cli.folder / CHECKPOINTS} already holds checkpoints; continue the run with --resume, or choose another "
            "folder with --trainer.default_root_dir"
        )
    if resume and cli.checkpoint is None:
        print(f"structrl fit: no checkpoint in {cli.folder} yet: starting from the beginning", file=sys.stderr)
    done = 0 if cli.checkpoint is None else read_checkpoint(Path(cli.checkpoint))["epoch"] + 1
    if cli.trainer.max_epochs is not None and 0 <= cli.trainer.max_epochs <= done:
        unit = "iterations" if hasattr(cli.model, "env_steps") else "epochs"
        print(
            f"structrl fit: {cli.folder} is finished: {done} of {cli.trainer.max_epochs} {unit}; raise "
            "--trainer.max_epochs to train on",
            file=sys.stderr,
        )
        return
    note = _config_changes(cli) if resume and cli.trainer.is_global_zero else ""
    signals.on_start = lambda: _write_run_folder(cli, note)
    fresh = not cli.folder.exists()
    cli.trainer.ckpt_path = cli.checkpoint  # an argument of `fit` would be unknown when the model is built

    def goodbye() -> None:
        if cli.trainer.is_global_zero:
            name, command = cast(Any, signals.received).name, f"structrl fit --resume {cli.folder}"
            print(f"structrl fit: {name}: the iteration is abandoned; continue with: {command}", file=sys.stderr)
            if queued := requeue(signals.received):
                print(f"structrl fit: {queued}", file=sys.stderr)

    signals.goodbye = goodbye
    failure: Exception | None = None
    try:
        cli.trainer.fit(cli.model, datamodule=cli.datamodule, weights_only=True)
    except Preempted:
        pass
    except Exception as error:
        if signals.received is not None:
            return  # another rank has left, and an operation that waited for it failed
        failure = error
        if fresh and not (cli.folder / CONFIG).exists() and cli.trainer.is_global_zero:  # it did not get to start
            shutil.rmtree(cli.folder, ignore_errors=True)  # the loggers' files
        raise
    except SystemExit:  # how Lightning ends after Ctrl-C, without a word
        print(f"structrl fit: interrupted; continue with: structrl fit --resume {cli.folder}", file=sys.stderr)
        raise
    finally:
        signals.leave(failure)


def _validate(argv: list[str], signals: Preemption) -> None:
    cli = _parse(argv, signals)
    checkpoint = cli.config.ckpt_path or newest_checkpoint(cli.folder)
    if checkpoint is None:
        raise UsageError(f"no checkpoint in {cli.folder}; give one with --ckpt_path FILE")
    if not Path(checkpoint).is_file():
        raise UsageError(f"--ckpt_path {checkpoint}: there is no such file")
    if not is_overridden("validation_step", cli.model):
        name = type(cli.model).__name__
        raise UsageError(f"{name} has no validation; use structrl evaluate --checkpoint {checkpoint}")
    if not getattr(cli.datamodule, "evaluate_episodes", 1):
        raise UsageError("data.evaluate_episodes is 0: there are no validation episodes to run")
    print(f"structrl validate: {checkpoint}", file=sys.stderr)
    cli.trainer.logger = None  # the run's curves are the training's
    cli.trainer.ckpt_path = checkpoint  # an argument of `validate` would be unknown when the model is built
    cli.trainer.validate(cli.model, datamodule=cli.datamodule, weights_only=True, verbose=False)
    for name, value in getattr(cli.model, "metrics", {}).items():
        print(f"{name:<60} {value:.6g}")


def _parse(argv: list[str], signals: Preemption, resume: bool = False) -> _StructrlCLI:
    """The instantiated config.

    Raises:
        UsageError: unknown keys, wrong types, values out of range, files that are not there.
    """
    try:
        cli = _StructrlCLI(spell_nulls(argv), signals, resume)
    except UsageError:
        raise
    except (ArgumentError, ValueError, TypeError, FileNotFoundError, ImportError, MisconfigurationException) as error:
        if os.environ.get("STRUCTRL_TRACEBACK"):
            raise
        raise UsageError(explain(error, argv)) from error
    check_overrides(argv, cli.config.as_dict())
    if cli.model is None:
        raise UsageError("no model; give a config: --config FILE.yaml")
    return cli


def _take_resume(argv: list[str]) -> tuple[list[str], bool, Path | None]:
    """Remove `--resume [RUN]` from `argv`; whether it was there, and RUN."""
    argv = [part for a in argv for part in (a.split("=", 1) if a.startswith("--resume=") else [a])]
    if "--resume" not in argv:
        return argv, False, None
    at = argv.index("--resume")
    value = argv[at + 1 : at + 2]
    if value and not value[0].startswith("-"):
        return argv[:at] + argv[at + 2 :], True, Path(value[0])
    return argv[:at] + argv[at + 1 :], True, None


def _dump(cli: _StructrlCLI) -> str:
    """The resolved config, without what belongs to this start alone."""
    config = cli.config.clone()
    config.ckpt_path = None
    return cli.parser.dump(config, skip_unset=False, format="yaml")


def _config_changes(cli: _StructrlCLI) -> str:
    """Say what a resumed run changes."""
    path = cli.folder / CONFIG
    if not path.is_file():
        return ""
    changed = list(differences(yaml.safe_load(path.read_text()), yaml.safe_load(_dump(cli))))
    note = "\n".join(["config changed on resume:", *(f"  {line}" for line in changed)] if changed else [])
    if note:
        print(f"structrl fit: {note}", file=sys.stderr)
    return note


def _write_run_folder(cli: _StructrlCLI, note: str) -> None:
    """Save config and code state. It happens once model and data are there."""
    if cli.trainer.is_global_zero:
        cli.folder.mkdir(parents=True, exist_ok=True)
        (cli.folder / CONFIG).write_text(_dump(cli))
        write_code_state(cli.folder, note)


def _guarded(command: str, run: Any, argv: list[str]) -> int:
    """Run `run(argv, signals)`; the user's mistakes become one message, anything later keeps its traceback."""
    for message in QUIET:
        warnings.filterwarnings("ignore", message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric.utilities.seed").setLevel(logging.WARNING)
    signals = Preemption()
    before = {number: signal.signal(number, signals.handle) for number in SIGNALS}
    try:
        run(argv, signals)
    except UsageError as error:
        print(f"structrl {command}: error: {error}", file=sys.stderr)
        return 2
    except Preempted as error:
        print(f"structrl {command}: {error} before the first iteration", file=sys.stderr)
    except (ValueError, FileNotFoundError, ImportError) as error:
        if signals.training or os.environ.get("STRUCTRL_TRACEBACK"):
            raise
        print(f"structrl {command}: error: {error}", file=sys.stderr)
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
