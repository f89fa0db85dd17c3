"""What runs episodes of many environments in chunks: here (`ChunkRunner`) or in workers (`Pool`). Torch-free.

Shapes: E environments, H chunk length, A action dims, N padded subtasks, n environments of a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import TaskSpec
from structrl.sims.base import ActionSpec, AtomTest, Ids, Start


class InvalidStartError(ValueError):
    """A task whose episodes are over before their first step, however often the start is redrawn."""


class EpisodeLostError(ValueError):
    """Something was asked of an episode that is lost with its worker."""


@dataclass(frozen=True)
class ChunkResult:
    """What one chunk did, for all E environments; the flags of an environment stay until its reset.

    `holds`, `atoms` and `values` have row 0 before the chunk; rows after `steps` repeat the last executed one.
    """

    holds: NDArray[np.bool_]  # [E, H+1, N]
    steps: NDArray[np.int64]  # [E], executed by this chunk; 0 for an environment that was already done
    t: NDArray[np.int64]  # [E], environment steps since reset
    success: NDArray[np.bool_]  # [E]
    failed: NDArray[np.bool_]  # [E], the task's `fail` condition or unstable physics
    unstable: NDArray[np.bool_]  # [E]
    terminated: NDArray[np.bool_]  # [E], success or failed
    truncated: NDArray[np.bool_]  # [E], horizon reached and not terminated
    dropped: NDArray[np.bool_]  # [E], lost with its worker: not an episode at all
    atoms: NDArray[np.bool_] | None = None  # [E, H+1, atoms], only with record=True
    values: NDArray[np.float64] | None = None  # [E, H+1, atoms], only with record=True


class SimulatorInfo(Protocol):
    """What is known of a simulator wherever it runs; see `structrl.sims.base.Simulator`."""

    tasks: tuple[TaskSpec, ...]
    num_envs: int
    control_hz: float
    action: ActionSpec
    observation: dict[str, tuple[tuple[int, ...], Any]]

    def atom_tests(self, task: int) -> tuple[AtomTest, ...]:
        """The test of each atom of a task."""


class Runner(Protocol):
    """Episodes of E environments, one action chunk at a time; `ChunkRunner` says what the members mean.

    `dropped` [E] marks episodes that were lost; they are done, and are no episodes at all. `lost` [E] are these and
    those whose loss the next chunk will report.
    """

    record: bool
    counts: dict[str, int]
    t: NDArray[np.int64]
    holds: NDArray[np.bool_]
    success: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    dropped: NDArray[np.bool_]

    @property
    def sim(self) -> SimulatorInfo:
        """The simulator."""

    @property
    def task(self) -> NDArray[np.int64]:
        """[E], row of each environment's task."""

    @property
    def done(self) -> NDArray[np.bool_]:
        """[E], environments that stand still until their reset."""

    @property
    def lost(self) -> NDArray[np.bool_]:
        """[E], episodes that are lost."""

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Begin episodes of environments `ids` at `starts`."""

    def run(self, action: NDArray[np.float32]) -> ChunkResult:
        """Execute one chunk: `action` float32 [E, H, A]."""

    def observe(self, ids: Ids) -> dict[str, np.ndarray]:
        """Observations of environments `ids`, each [n, ...]."""

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """Everything to continue the episodes of `ids` bit for bit."""

    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""

    def make_expert(self, target: str, **arguments: Any) -> Any:
        """A scripted expert where the simulator is: `reset(ids, starts)` and `act(ids)` -> [n, A]."""

    def close(self) -> None:
        """Close the simulator."""


def check_starts(ids: Ids, starts: Sequence[Start], tasks: int) -> None:
    """Raises ValueError unless there is one start per environment, each of a task that exists."""
    if len(ids) != len(starts):
        raise ValueError(f"{len(ids)} environments, {len(starts)} starts")
    for start in starts:
        if not 0 <= start.task < tasks:
            raise ValueError(f"start of task row {start.task}, there are {tasks} tasks")


def check_actions(runner: Runner, action: NDArray[np.float32], active: Ids) -> None:
    """Raises ValueError for actions of a wrong shape, and for one of an `active` environment that is not finite."""
    E, A = runner.sim.num_envs, len(runner.sim.action.low)
    if action.ndim != 3 or (action.shape[0], action.shape[2]) != (E, A):
        raise ValueError(f"actions of shape {action.shape}, expected ({E}, H, {A})")
    finite = np.isfinite(action[active]).all((1, 2))
    if not finite.all():
        env = int(active[~finite][0])
        spec = runner.sim.tasks[runner.task[env]]
        raise ValueError(
            f"action of environment {env} (task '{spec.name}', {spec.path}) is not finite at step {runner.t[env]}: "
            f"{action[env].tolist()}; the policy produced NaN or infinity"
        )
