"""Runs the condition programs of task specs every environment step, vectorised over environments (torch-free).

Shapes: n environments of a call, E all environments, A padded atoms, N padded subtasks, C padded counters.

A program is compiled to rows of a work table [rows, n]: the first rows are the atoms, every further row is one numpy
operation on earlier rows. Subtasks, `success` and `fail` of a task share equal sub-expressions, counters included:
every program is evaluated at every step, so equal sub-expressions always have equal counters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import Program, TaskSpec

Bools = NDArray[np.bool_]


class Verdict(NamedTuple):
    """Truth of every program after one step. Padding and programs that a task does not have are False."""

    holds: Bools  # [n, N]
    success: Bools  # [n]
    fail: Bools  # [n]


@dataclass
class _Compiled:
    """The shared operations of one task: `rows[i]` computes work row `num_atoms + i`."""

    num_atoms: int
    rows: list[tuple] = field(default_factory=list)
    num_counters: int = 0
    known: dict[tuple, int] = field(default_factory=dict)

    def row(self, key: tuple) -> int:
        """The row of an operation on rows, new or shared."""
        if key not in self.known:
            self.known[key] = self.num_atoms + len(self.rows)
            if key[0] in ("for", "steps_of"):
                self.rows.append((*key, self.num_counters))
                self.num_counters += 1
            else:
                self.rows.append(key)
        return self.known[key]

    def add(self, program: Program, where: str) -> int:
        """Compile one postfix program; returns the row of its truth."""
        stack: list[int] = []

        def pop(n: int) -> tuple[int, ...]:
            if not isinstance(n, int) or not 1 <= n <= len(stack):
                raise ValueError(f"{where}: operation needs {n} operands, {len(stack)} are there: {program}")
            taken = tuple(stack[-n:])
            del stack[-n:]
            return taken

        for op in program:
            match op:
                case ("atom", int(i)) if 0 <= i < self.num_atoms:
                    stack.append(i)
                case ("not",):
                    stack.append(self.row(("not", *pop(1))))
                case ("and" | "or" as kind, n):
                    first, *others = pop(n)
                    for other in others:
                        first = self.row((kind, first, other))
                    stack.append(first)
                case ("at_least", int(k), n):
                    stack.append(self.row(("at_least", k, pop(n))))
                case ("for" | "steps_of" as kind, int(steps)) if steps >= 1:
                    stack.append(self.row((kind, steps, *pop(1))))
                case _:
                    raise ValueError(f"{where}: unknown operation {op!r} ({self.num_atoms} atoms)")
        if len(stack) != 1:
            raise ValueError(f"{where}: a program must leave one truth value, this leaves {len(stack)}: {program}")
        return stack[0]


class ConditionTable:
    """Evaluates all programs of the tasks' environments and keeps the counters of `for N steps` and `N steps of`.

    `c for N steps` holds when c held at the last N evaluations, `N steps of c` when c held at N evaluations; the
    state at reset is the first evaluation.

    Args:
        tasks: the task specs, in the order of their row numbers.
        num_envs: E.

    Raises:
        ValueError: a malformed program; the message names the task's file and the subtask.

    Attributes:
        num_subtasks: N, the maximum over tasks.
        num_atoms: A, the maximum over tasks.
        has_success: bool [tasks], whether the task states `success`.
        task: int64 [E], the task of each environment.
    """

    def __init__(self, tasks: Sequence[TaskSpec], num_envs: int = 1):
        self._compiled, self._outputs = [], []
        for spec in tasks:
            compiled = _Compiled(len(spec.atoms))
            where = f"{spec.path}: task '{spec.name}'"
            subtasks = [compiled.add(s.program, f"{where}: subtask '{s.label}'") for s in spec.subtasks]
            success = None if spec.success is None else compiled.add(spec.success, f"{where}: success")
            fail = None if spec.fail is None else compiled.add(spec.fail, f"{where}: fail")
            self._compiled.append(compiled)
            self._outputs.append((np.array(subtasks, np.int64), success, fail))
        self.num_subtasks = max((len(spec.subtasks) for spec in tasks), default=0)
        self.num_atoms = max((len(spec.atoms) for spec in tasks), default=0)
        self.has_success = np.array([spec.success is not None for spec in tasks], bool)
        self.task = np.zeros(num_envs, np.int64)
        self._counters = np.zeros((max((c.num_counters for c in self._compiled), default=0), num_envs), np.int32)

    def reset(self, ids: NDArray[np.int64], task: NDArray[np.int64] | Sequence[int]) -> None:
        """Environments `ids` begin an episode of `task` [n]: counters to zero. Evaluate t = 0 with `step` next."""
        self.task[ids] = task
        self._counters[:, ids] = 0

    def step(self, ids: NDArray[np.int64], atoms: Bools) -> Verdict:
        """Evaluate one step of environments `ids` from their `atoms` bool [n, A] (further columns are ignored)."""
        if len(self._compiled) == 1:
            return self._step_task(0, ids, atoms)
        verdict = Verdict(np.zeros((len(ids), self.num_subtasks), bool), *np.zeros((2, len(ids)), bool))
        task = self.task[ids]
        for k in np.flatnonzero(np.bincount(task)).tolist():
            at = np.flatnonzero(task == k)
            holds, success, fail = self._step_task(k, ids[at], atoms[at])
            verdict.holds[at, : holds.shape[1]] = holds
            verdict.success[at] = success
            verdict.fail[at] = fail
        return verdict

    def _step_task(self, k: int, ids: NDArray[np.int64], atoms: Bools) -> Verdict:
        compiled = self._compiled[k]
        n_atoms = compiled.num_atoms
        work = np.empty((n_atoms + len(compiled.rows), len(ids)), bool)
        work[:n_atoms] = atoms[:, :n_atoms].T
        for row, op in zip(work[n_atoms:], compiled.rows, strict=True):
            match op[0]:
                case "and":
                    np.logical_and(work[op[1]], work[op[2]], out=row)
                case "or":
                    np.logical_or(work[op[1]], work[op[2]], out=row)
                case "not":
                    np.logical_not(work[op[1]], out=row)
                case "at_least":
                    np.greater_equal(np.count_nonzero(work[list(op[2])], axis=0), op[1], out=row)
                case kind:
                    _, steps, child, slot = op
                    count = self._counters[slot, ids] + work[child]
                    if kind == "for":
                        count *= work[child]
                    self._counters[slot, ids] = count
                    np.greater_equal(count, steps, out=row)
        subtasks, success, fail = self._outputs[k]
        never = np.zeros(len(ids), bool)
        return Verdict(
            work[subtasks].T,
            never if success is None else work[success],
            never if fail is None else work[fail],
        )

    def state(self, ids: NDArray[np.int64]) -> dict[str, np.ndarray]:
        """`task` int64 [n] and `counters` int32 [n, C] of environments `ids`."""
        return {"task": self.task[ids].copy(), "counters": self._counters[:, ids].T.copy()}

    def set_state(self, ids: NDArray[np.int64], state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, in the same or other environments."""
        self.task[ids] = state["task"]
        self._counters[:, ids] = state["counters"].T
