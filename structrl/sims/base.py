"""The contract of a simulator (torch-free): a batch of environments that step, report atoms, and are observed.

`structrl.sims.chunks.ChunkRunner` drives it: it evaluates the tasks' condition programs every step, stops a chunk at
success or failure, and asks for an observation once per chunk.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import TaskSpec

Ids = NDArray[np.int64]  # sorted, unique environment numbers


class Start(NamedTuple):
    """Where an episode begins. Equal starts give equal initial states, bit for bit."""

    task: int  # row in the list of tasks
    init: int  # stored initial state of the benchmark, -1 where starts are drawn at random
    seed: tuple[int, ...]  # counters for `structrl.seeding.generator`; a redraw appends its attempt number


@dataclass(frozen=True)
class ActionSpec:
    """Meaning of the action dims, one entry each."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class AtomTest:
    """How an atom is decided: `value op threshold`, for explanations. `op` is '<' or '>'; `unit` e.g. 'm', 'rad'."""

    text: str  # the atom as written, `in(apple_1, lunchbox)`
    op: str
    threshold: float
    unit: str
    meaning: str


class Simulator(ABC):
    """A batch of environments of one simulator, in this process.

    Attributes set by every subclass's constructor, `__init__(tasks, num_envs, **arguments)`; unknown arguments are a
    TypeError:
        tasks: the task specs, in the order of their row numbers.
        num_envs: E.
        control_hz: environment steps per second of simulated time.
        action: meaning and bounds of the action.
        observation: name -> (shape without the batch axis, numpy dtype), what `observe` returns.
    """

    film: ClassVar[dict[str, Any]] = {}
    """Arguments with which `observe` gives one picture for people, `images.<camera>`; empty: it makes none."""

    tasks: tuple[TaskSpec, ...]
    num_envs: int
    control_hz: float
    action: ActionSpec
    observation: dict[str, tuple[tuple[int, ...], Any]]

    @abstractmethod
    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Put environments `ids` at `starts` (same order), settled. Others are untouched."""

    @abstractmethod
    def step(self, ids: Ids, action: NDArray[np.float32]) -> None:
        """Advance environments `ids` by one control step with `action` [n, A]."""

    @abstractmethod
    def atoms(self, ids: Ids) -> NDArray[np.bool_]:
        """Truth of the atoms of each environment's task, [n, max atoms over tasks]; padding is False."""

    @abstractmethod
    def atom_values(self, ids: Ids) -> NDArray[np.float64]:
        """Measured values behind `atoms`, [n, max atoms]; NaN for padding and where the simulator has no measure."""

    @abstractmethod
    def atom_tests(self, task: int) -> tuple[AtomTest, ...]:
        """The test of each atom of a task, in the order of `tasks[task].atoms`."""

    @abstractmethod
    def observe(self, ids: Ids) -> dict[str, np.ndarray]:
        """Observations of environments `ids`, each [n, ...]; called once per chunk."""

    @abstractmethod
    def unstable(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of `ids` had unstable physics since their reset, [n]."""

    @abstractmethod
    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """Everything that `set_state` needs to continue bit for bit, each [n, ...]."""

    @abstractmethod
    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, in the same or other environments of the same tasks."""

    def own_success(self, ids: Ids) -> NDArray[np.bool_]:
        """The simulator's own success check, [n]; used where a task file states no `success`.

        Raises:
            NotImplementedError: the simulator has no check of its own (then `success` is required in the file).
        """
        raise NotImplementedError(f"{type(self).__name__} has no success check of its own; state `success` in the task")

    def close(self) -> None:  # noqa: B027 - optional hook
        """Release what the simulator holds."""
