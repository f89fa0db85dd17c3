"""Runs action chunks on a simulator batch: conditions every step, stop at success, failure or horizon (torch-free).

Shapes: E environments, H chunk length, A action dims, N padded subtasks, n environments of a call.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.sims.base import Ids, Simulator, Start
from structrl.sims.conditions import ConditionTable
from structrl.sims.runner import ChunkResult, InvalidStartError, check_actions, check_starts

MAX_REDRAWS = 100
_SHARED = ("t", "holds", "success", "failed", "unstable", "truncated", "atoms", "values")  # what `state` carries


class ChunkRunner:
    """Episodes of a simulator batch, one action chunk at a time.

    A step in which `fail` holds is a failure even if `success` holds too. After unstable physics nothing measured is
    valid: that step repeats the row before it, so that nothing more is credited. Actions are clipped to the bounds of
    the simulator's action spec, and executed steps with a clipped action are counted.

    Args:
        sim: the simulator.
        record: keep atoms and their measured values of every step (evaluation, demonstrations).

    Raises:
        ValueError: a task has no horizon, or neither the task nor the simulator defines success.

    Attributes:
        counts: since construction: `invalid_starts` redrawn, episodes `failed` (unstable ones included), episodes
            `unstable`, `clipped_steps`.
    """

    def __init__(self, sim: Simulator, record: bool = False):
        self.sim = sim
        self.record = record
        self.conditions = ConditionTable(sim.tasks, sim.num_envs)
        for spec in sim.tasks:
            if spec.horizon is None:
                raise ValueError(f"{spec.path}: task '{spec.name}' needs a `horizon` to be run")
            if spec.success is None and type(sim).own_success is Simulator.own_success:
                raise ValueError(
                    f"{spec.path}: task '{spec.name}' needs `success`: {type(sim).__name__} has no success check"
                )
        self._horizon = np.array([spec.horizon for spec in sim.tasks], np.int64)
        self._low, self._high = (np.array(bound, np.float32) for bound in (sim.action.low, sim.action.high))
        E = sim.num_envs
        self.t = np.zeros(E, np.int64)
        self.holds = np.zeros((E, self.conditions.num_subtasks), bool)
        self.success, self.failed, self.unstable, self.truncated = np.zeros((4, E), bool)
        self.truncated[:] = True  # nothing runs before its first reset
        self.dropped = np.zeros(E, bool)  # here episodes are never lost, see `structrl.sims.pool`
        self.atoms = np.zeros((E, self.conditions.num_atoms), bool)
        self.values = np.full((E, self.conditions.num_atoms), np.nan)
        self.counts = {"invalid_starts": 0, "unstable": 0, "failed": 0, "clipped_steps": 0}

    @property
    def task(self) -> NDArray[np.int64]:
        """[E], row of each environment's task."""
        return self.conditions.task

    @property
    def done(self) -> NDArray[np.bool_]:
        """[E], environments that stand still until their reset."""
        return self.success | self.failed | self.truncated

    @property
    def lost(self) -> NDArray[np.bool_]:
        """[E], all False."""
        return self.dropped

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Begin episodes of environments `ids` at `starts` (same order).

        A start at which the episode would already be over (success, fail or unstable physics) is invalid: it is
        redrawn with the attempt number 1, 2, ... appended to its seed, and counted.

        Raises:
            InvalidStartError: 100 redraws did not give a valid start; the message names the task file.
            ValueError: a start's task is not a row of the tasks.
        """
        check_starts(ids, starts, len(self.sim.tasks))
        ids = np.asarray(ids, np.int64)
        origin = dict(zip(ids.tolist(), starts, strict=True))
        pending = ids
        for attempt in range(MAX_REDRAWS + 1):
            drawn = [origin[i] for i in pending.tolist()]
            if attempt:
                self.counts["invalid_starts"] += len(pending)
                drawn = [start._replace(seed=(*start.seed, attempt)) for start in drawn]
            self.sim.reset(pending, drawn)
            self.conditions.reset(pending, [start.task for start in drawn])
            self.t[pending] = 0
            for flag in (self.success, self.failed, self.unstable, self.truncated):
                flag[pending] = False
            pending = pending[self._evaluate(pending)]
            if not len(pending):
                return
        env = int(pending[0])
        spec = self.sim.tasks[self.conditions.task[env]]
        why = "`success` holds" if self.success[env] else "unstable physics" if self.unstable[env] else "`fail` holds"
        raise InvalidStartError(
            f"{spec.path}: task '{spec.name}': {why} before the first step, and after {MAX_REDRAWS} redraws of "
            f"{origin[env]} still"
        )

    def run(self, action: NDArray[np.float32]) -> ChunkResult:
        """Execute one chunk: `action` float32 [E, H, A] in the units of the action spec.

        An environment stops within its chunk at success, failure, unstable physics or horizon; one that is done stands
        still. Rows of `action` that belong to environments already done are not read.

        Raises:
            ValueError: wrong shape, or an action that is NaN or infinite; the message names environment and task.
        """
        E, N = self.holds.shape
        active = np.flatnonzero(~self.done)
        check_actions(self, action, active)
        H = action.shape[1]
        within = np.clip(action, self._low, self._high)
        t_before, failed_before, unstable_before = self.t.copy(), self.failed.copy(), self.unstable.copy()
        holds = np.empty((E, H + 1, N), bool)
        atoms = np.empty((E, H + 1, self.atoms.shape[1]), bool) if self.record else None
        values = np.empty((E, H + 1, self.atoms.shape[1])) if self.record else None
        for h in range(H + 1):
            if h and len(active):
                active = self._step(active, within[active, h - 1])
            holds[:, h] = self.holds
            if atoms is not None and values is not None:
                atoms[:, h], values[:, h] = self.atoms, self.values
        steps = self.t - t_before
        executed = np.arange(H) < steps[:, None]
        self.counts["clipped_steps"] += int(((within != action).any(-1) & executed).sum())
        self.counts["failed"] += int((self.failed & ~failed_before).sum())
        self.counts["unstable"] += int((self.unstable & ~unstable_before).sum())
        return ChunkResult(
            holds=holds,
            steps=steps,
            t=self.t.copy(),
            success=self.success.copy(),
            failed=self.failed.copy(),
            unstable=self.unstable.copy(),
            terminated=self.success | self.failed,
            truncated=self.truncated.copy(),
            dropped=self.dropped,
            atoms=atoms,
            values=values,
        )

    def _step(self, ids: Ids, action: NDArray[np.float32]) -> Ids:
        """One control step; returns the environments that go on."""
        self.sim.step(ids, action)
        self.t[ids] += 1
        over = self._evaluate(ids)
        late = self.t[ids] >= self._horizon[self.conditions.task[ids]]
        self.truncated[ids] = late & ~over
        stop = over | late
        return ids[~stop] if stop.any() else ids

    def _evaluate(self, ids: Ids) -> NDArray[np.bool_]:
        """Read atoms, update holds and flags of `ids`; returns which are over (success or failure), [n]."""
        atoms = self.sim.atoms(ids)
        holds, success, fail = self.conditions.step(ids, atoms)
        if not self.conditions.has_success.all():
            own = np.flatnonzero(~self.conditions.has_success[self.conditions.task[ids]])
            if len(own):
                success = success.copy()
                success[own] = self.sim.own_success(ids[own])
        broken = self.sim.unstable(ids)
        values = self.sim.atom_values(ids) if self.record else None
        valid = np.flatnonzero(~broken)
        self.holds[ids[valid]] = holds[valid]
        if values is not None:
            self.atoms[ids[valid]], self.values[ids[valid]] = atoms[valid], values[valid]
        failed = fail | broken
        success = success & ~failed
        self.success[ids], self.failed[ids], self.unstable[ids] = success, failed, broken
        return success | failed

    def observe(self, ids: Ids) -> dict[str, np.ndarray]:
        """Observations of environments `ids`, each [n, ...]."""
        return self.sim.observe(ids)

    def make_expert(self, target: str, **arguments: Any) -> Any:
        """Construct the scripted expert `package.module:Class` on the simulator."""
        module, attribute = target.split(":")
        return getattr(import_module(module), attribute)(self.sim, **arguments)

    def close(self) -> None:
        """Close the simulator."""
        self.sim.close()

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """Everything to continue the episodes of `ids` bit for bit, each [n, ...]; see `set_state`."""
        parts = {"sim": self.sim.state(ids), "conditions": self.conditions.state(ids)}
        flat = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
        return flat | {key: getattr(self, key)[ids].copy() for key in _SHARED}

    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, in the same or other environments."""
        for part, owner in (("sim.", self.sim), ("conditions.", self.conditions)):
            owner.set_state(ids, {k.removeprefix(part): v for k, v in state.items() if k.startswith(part)})
        for key in _SHARED:
            getattr(self, key)[ids] = state[key]
