"""SIGTERM and SIGUSR1: every rank leaves the iteration within seconds, and the job is put back into Slurm's queue.

Also: a rank that fails ends the others, which would wait for it.

The iteration is abandoned, not saved: checkpoints are of whole iterations, and a run that resumes from one equals a run
that was never stopped. So a rank may be left anywhere, even inside an operation that waits for the others.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
POLL = 0.2  # seconds between a rank's looks at whether another one was told to stop
GRACE = 2.0  # seconds for a rank to leave by itself; then it waits for ranks that have left already
_TOLD, _LEFT, _FAILED = "structrl/told", "structrl/left", "structrl/failed"  # keys of the ranks' common store


class Preempted(BaseException):
    """SIGTERM or SIGUSR1: the iteration is abandoned. Not an Exception, so that nothing on the way swallows it."""


class Preemption(Callback):
    """Turns the first SIGTERM or SIGUSR1, here or on another rank, into `Preempted`, wherever the program is.

    Python drops exceptions raised inside finalisers and callbacks from C; should that happen, the next hook raises. A
    rank that does not come back from a collective operation ends with exit code 0 after `GRACE` seconds.

    Attributes:
        received: the signal, whichever rank received it.
        training: whether training has begun.
        on_start: called when model and data are there, before training.
        goodbye: what this rank does last after a signal.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.training = False
        self.on_start: Callable[[], None] = lambda: None
        self.goodbye: Callable[[], None] = lambda: None
        self._raised = False
        self._watch: _Watch | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self.received = self.received or signal.Signals(number)
        if not self._raised:
            self._raised = True
            self._raise()

    def _raise(self) -> None:
        if self.received is not None:
            raise Preempted(self.received.name)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start."""
        self.on_start()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen to signals alone, and to the other ranks."""
        self.training = True
        # Lightning has put a handler in front of ours that broadcasts: of a signal to one rank the others know nothing.
        for number in SIGNALS:
            signal.signal(number, self.handle)
        if trainer.world_size > 1:
            self._watch = _Watch(self, trainer.global_rank, trainer.world_size)
            self._watch.start()

    def on_train_batch_start(self, *_: Any) -> None:
        """Raise if that was lost."""
        self._raise()

    def on_train_batch_end(self, *_: Any) -> None:
        """Raise if that was lost."""
        self._raise()

    def leave(self, error: BaseException | None = None) -> None:
        """After training. After a signal: say goodbye, and tell the other ranks; likewise of a failure."""
        if self.received is not None:
            self.goodbye()
        if self._watch is not None:
            if error is not None and self.received is None:
                self._watch.fail(error)
            self._watch.leave()


class _Watch(threading.Thread):
    """Hands the signal on through the store that the ranks met in; a connection of its own, so that nothing waits."""

    def __init__(self, preemption: Preemption, rank: int, ranks: int):
        super().__init__(daemon=True, name="preemption")
        self.preemption, self.rank, self.ranks = preemption, rank, ranks
        store: Any = torch.distributed.distributed_c10d._get_default_store()
        self.store = store.clone()
        self.over = threading.Event()  # training has ended, one way or another

    def run(self) -> None:
        while self.preemption.received is None:
            try:
                if self.store.check([_TOLD]):
                    self.preemption.received = signal.Signals[self.store.get(_TOLD).decode()]
                    os.kill(os.getpid(), self.preemption.received)  # the main thread's handler raises
                elif self.store.check([_FAILED]):
                    return self._end_with_it()
            except RuntimeError:  # the first rank, which keeps the store, has ended; torch says so where it matters
                return
            if self.over.wait(POLL):
                return
        self._tell()
        if not self.over.wait(GRACE):
            print(f"structrl: rank {self.rank} waits for ranks that have left, and ends", file=sys.stderr)
            self.preemption.goodbye()
            sys.stderr.flush()
            self._left()
            os._exit(0)

    def _end_with_it(self) -> None:
        """Another rank has failed: end, if what waits for it does not."""
        what = self.store.get(_FAILED).decode()
        if not self.over.wait(GRACE):
            print(f"structrl: rank {self.rank} ends, because {what}", file=sys.stderr)
            sys.stderr.flush()
            self._left()
            os._exit(1)

    def fail(self, error: BaseException) -> None:
        """Say that this rank ends by `error`; the first rank that does so is the cause, the others are its victims."""
        what = f"rank {self.rank} failed: {type(error).__name__}: {error}"
        try:
            cause = self.store.compare_set(_FAILED, "", what).decode()
        except RuntimeError:  # see `run`
            return
        if cause != what:
            print(f"structrl: rank {self.rank} ends, because {cause}", file=sys.stderr)
        self.over.set()
        self._left()

    def _tell(self) -> None:
        received = self.preemption.received
        if received is not None:
            try:
                self.store.set(_TOLD, received.name)
            except RuntimeError:  # see `run`
                return

    def leave(self) -> None:
        """Ends the watch. After a signal the first rank, which keeps the store, waits until the others know."""
        self._tell()
        self.over.set()
        if self.preemption.received is not None:
            self._left()

    def _left(self) -> None:
        try:
            left = self.store.add(_LEFT, 1)
            waited = 0.0
            while self.rank == 0 and left < self.ranks and waited < 2 * GRACE:
                threading.Event().wait(POLL)
                waited += POLL
                left = self.store.add(_LEFT, 0)
        except RuntimeError:  # see `run`
            return


def requeue(received: signal.Signals | None) -> str | None:
    """Put this Slurm job back into its queue after SIGUSR1, the signal that `sbatch --signal` announces the end with.

    Slurm itself does so after its own SIGTERM, where the partition's preemption is set up that way.

    Returns:
        What was done, None where there was nothing to do.
    """
    environment = os.environ
    if received != signal.SIGUSR1 or "SLURM_JOB_ID" not in environment:
        return None
    job = environment["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in environment:
        job = f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True)
    except OSError as error:
        return f"Slurm job {job} is not requeued: scontrol: {error.strerror}"
    if done.returncode:
        return f"Slurm job {job} is not requeued: {done.stderr.strip()}"
    return f"Slurm job {job} is requeued"
