"""A task's plan as tensors, alone (`Plan`) or stacked with other tasks' plans for a batch of environments.

T tasks, E environments, N subtasks (padded to the longest plan when stacked).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structrl.lang.spec import TaskSpec


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of one task; row i is the i-th subtask in source order.

    Attributes:
        names: labels of the N subtasks.
        prerequisites: bool [N, N]; `[i, j]`: j before i, transitively closed.
        durations: float64 [N], reference duration T_d in environment steps, NaN where the task file gives none.
        worth: float64 [N], multiplies a subtask's pay.
        newly: bool [N], the condition must turn true after the subtask became eligible.
        pulse: bool [N], the condition reads a momentary event.
        task: name of the task.
        path: file it came from, for messages.
    """

    names: tuple[str, ...]
    prerequisites: Tensor
    durations: Tensor
    worth: Tensor
    newly: Tensor
    pulse: Tensor
    task: str
    path: str

    @classmethod
    def from_spec(cls, spec: TaskSpec) -> "Plan":
        """The tensors of a task spec.

        Raises:
            ValueError: a plan without subtasks; prerequisites that are cyclic, out of range or not transitively closed.
        """
        subtasks, num_subtasks = spec.subtasks, len(spec.subtasks)
        if not subtasks:
            raise ValueError(f"{spec.path}: the plan has no subtasks")
        prerequisites = torch.zeros(num_subtasks, num_subtasks, dtype=torch.bool)
        for i, subtask in enumerate(subtasks):
            if not all(0 <= j < num_subtasks for j in subtask.prerequisites):
                raise ValueError(f"{spec.path}: a prerequisite of '{subtask.label}' is not a subtask of the plan")
            prerequisites[i, list(subtask.prerequisites)] = True
        if prerequisites.diagonal().any():
            label = subtasks[int(prerequisites.diagonal().nonzero()[0])].label
            raise ValueError(f"{spec.path}: subtask '{label}' is its own prerequisite")
        if ((prerequisites.double() @ prerequisites.double() > 0) & ~prerequisites).any():
            raise ValueError(f"{spec.path}: prerequisites must be transitively closed")
        return cls(
            names=tuple(s.label for s in subtasks),
            prerequisites=prerequisites,
            durations=torch.tensor(
                [torch.nan if s.duration is None else s.duration for s in subtasks], dtype=torch.float64
            ),
            worth=torch.tensor([s.worth for s in subtasks], dtype=torch.float64),
            newly=torch.tensor([s.newly for s in subtasks]),
            pulse=torch.tensor([s.pulse for s in subtasks]),
            task=spec.name,
            path=spec.path,
        )


class PlanRows(NamedTuple):
    """The plan of each environment of a batch: `Plan`'s tensors with a leading axis E, and `valid` bool [E, N]."""

    prerequisites: Tensor
    durations: Tensor
    worth: Tensor
    newly: Tensor
    pulse: Tensor
    valid: Tensor


@dataclass(frozen=True, eq=False)
class StackedPlans:
    """Plans of T tasks, padded to the longest.

    Attributes:
        task_names, paths: name and file of each task.
        names: labels of each task's subtasks, unpadded.
        prerequisites: bool [T, N, N].
        durations, worth: float64 [T, N]; padding is NaN and 0.
        newly, pulse: bool [T, N].
        valid: bool [T, N], False for padding.
        horizon: int64 [T], environment steps; 0 where a task file gives none.
    """

    task_names: tuple[str, ...]
    paths: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    prerequisites: Tensor
    durations: Tensor
    worth: Tensor
    newly: Tensor
    pulse: Tensor
    valid: Tensor
    horizon: Tensor

    def to(self, device: torch.device | str) -> "StackedPlans":
        """The same plans with their tensors on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {name: x.to(device) for name, x in values.items() if isinstance(x, Tensor)}
        return replace(self, **moved)

    def rows(self, task: Tensor) -> PlanRows:
        """The plan of each environment, for task rows `task` int64 [E]."""
        return PlanRows(*(getattr(self, name).index_select(0, task) for name in PlanRows._fields))


def compile_plan(task: "str | Path | TaskSpec") -> Plan:
    """The plan of a task: its spec, the path or name of its file, or the text of a plan or task file.

    A string that has no parenthesis, or is a single line ending in `.task`, is taken as a path or name.

    Raises:
        structrl.lang.diagnostics.TaskError: the text or file is not a valid task (a ValueError).
        FileNotFoundError: there is no such file.
    """
    if isinstance(task, TaskSpec):
        return Plan.from_spec(task)
    from structrl.task import load_task, parse_task

    if isinstance(task, Path):
        return Plan.from_spec(load_task(str(task)))
    is_file = "(" not in task or ("\n" not in task and task.endswith(".task"))
    return Plan.from_spec(load_task(task) if is_file else parse_task(task))


def stack_plans(tasks: Sequence[TaskSpec]) -> StackedPlans:
    """Plans of several tasks, padded; the row of a task is its position in `tasks`.

    Raises:
        ValueError: no tasks; two tasks of one name; a plan that `Plan.from_spec` rejects.
    """
    if not tasks:
        raise ValueError("stack_plans needs at least one task")
    plans = [Plan.from_spec(spec) for spec in tasks]
    repeated = {p.task for p in plans if sum(q.task == p.task for q in plans) > 1}
    if repeated:
        raise ValueError(f"task names must differ, repeated: {', '.join(sorted(repeated))}")
    longest = max(len(p.names) for p in plans)

    def pad(name: str, fill: float) -> Tensor:
        rows = [getattr(p, name) for p in plans]
        return torch.stack([torch.nn.functional.pad(r, (0, longest - len(r)) * r.ndim, value=fill) for r in rows])

    return StackedPlans(
        task_names=tuple(p.task for p in plans),
        paths=tuple(p.path for p in plans),
        names=tuple(p.names for p in plans),
        prerequisites=pad("prerequisites", False),
        durations=pad("durations", torch.nan),
        worth=pad("worth", 0.0),
        newly=pad("newly", False),
        pulse=pad("pulse", False),
        valid=torch.stack([torch.arange(longest) < len(p.names) for p in plans]),
        horizon=torch.tensor([spec.horizon or 0 for spec in tasks], dtype=torch.int64),
    )
