"""What the trainer has of a simulator and of an expert that live in workers (torch-free)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import TaskSpec
from structrl.sims.base import ActionSpec, AtomTest, Ids, Start
from structrl.sims.wire import Answer

if TYPE_CHECKING:
    from structrl.sims.pool import Pool


@dataclass
class RemoteSimulator:
    """What is known here of a simulator in workers, see `structrl.sims.base.Simulator`; `versions` of its Python."""

    tasks: tuple[TaskSpec, ...]
    num_envs: int
    control_hz: float
    action: ActionSpec
    observation: dict[str, tuple[tuple[int, ...], Any]]
    tests: tuple[tuple[AtomTest, ...], ...]
    versions: dict[str, str]

    def atom_tests(self, task: int) -> tuple[AtomTest, ...]:
        """The test of each atom of a task."""
        return self.tests[task]


class RemoteExpert:
    """A scripted expert that lives in the workers, beside its simulator."""

    def __init__(self, pool: "Pool", number: int):
        self._pool, self._number = pool, number

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Begin episodes; those that are lost already have no simulator to be played in."""
        pool = self._pool
        parts = {w: at[~pool.lost[ids[at]]] for w, at in pool._by_worker(ids).items()}
        fields = {
            w: {
                "expert": self._number,
                "ids": pool._local[ids[at]].tolist(),
                "starts": [(int(s.task), int(s.init), [int(n) for n in s.seed]) for s in (starts[i] for i in at)],
            }
            for w, at in parts.items()
            if len(at)
        }
        pool._call("expert_reset", fields)

    def act(self, ids: Ids) -> NDArray[np.float32]:
        """Actions [n, A] of one control step; zeros for environments whose episode is dropped."""
        pool = self._pool
        out = np.zeros((len(ids), len(pool.sim.action.low)), np.float32)
        parts = {w: at[~pool._lost[ids[at]]] for w, at in pool._by_worker(ids).items()}
        fields = {
            w: {"expert": self._number, "ids": pool._local[ids[at]].tolist()} for w, at in parts.items() if len(at)
        }

        def take(w: int, answer: Answer) -> None:
            action = answer[1].get("action")
            if action is None or action.shape != out[parts[w]].shape:
                raise pool._processes[w].fault("its expert acts in another shape")
            out[parts[w]] = action

        pool._call("expert_act", fields, take)
        return out
