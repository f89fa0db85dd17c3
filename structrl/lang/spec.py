"""TaskSpec: what a `.task` file lowers to. Plain data with a JSON form; simulators see nothing else."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

# One instruction of a postfix program:
#   ("atom", i) push atom i | ("not",) | ("and", n) | ("or", n) | ("at_least", k, n): k of the n topmost
#   ("for", steps): the topmost has held for so many consecutive steps | ("steps_of", steps): cumulative
Op = tuple[Any, ...]
Program = tuple[Op, ...]


@dataclass(frozen=True)
class AtomSpec:
    """A predicate on simulator entities. `params` are thresholds given in the file, in SI units (m, rad, s, 1)."""

    predicate: str
    args: tuple[str, ...]
    params: tuple[tuple[str, float], ...] = ()
    pulse: bool = False

    def __str__(self) -> str:
        return f"{self.predicate}({', '.join([*self.args, *(f'{k}={v:g}' for k, v in self.params)])})"


@dataclass(frozen=True)
class SubtaskSpec:
    """One subtask of the plan, in source order.

    `prerequisites` are indices into the task's subtasks, transitively closed; `duration` is T_d in environment steps.
    """

    label: str
    condition: str  # canonical text
    program: Program
    prerequisites: tuple[int, ...] = ()
    duration: float | None = None
    worth: float = 1.0
    newly: bool = False
    pulse: bool = False  # the condition reads a pulse atom
    line: int = 0


@dataclass(frozen=True)
class TaskSpec:
    """A task: atoms, subtasks, success and fail programs, horizon and simulator arguments.

    A file holding only a plan has no `sim`, `horizon`, `command` or `success`; it compiles, scores and explains.
    """

    name: str
    atoms: tuple[AtomSpec, ...]
    subtasks: tuple[SubtaskSpec, ...]
    command: str | None = None
    sim: str | None = None
    sim_args: dict[str, Any] = field(default_factory=dict)
    horizon: int | None = None
    success: Program | None = None
    fail: Program | None = None
    path: str = "<string>"
    source: str = ""

    def to_json(self) -> str:
        """The JSON text that workers and episode files carry."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "TaskSpec":
        """Inverse of `to_json`.

        Raises:
            TypeError: for missing or unknown fields.
        """
        data = json.loads(text)
        data["atoms"] = tuple(
            AtomSpec(**{**a, "args": tuple(a["args"]), "params": tuple((k, v) for k, v in a["params"])})
            for a in data["atoms"]
        )
        data["subtasks"] = tuple(
            SubtaskSpec(**{**s, "program": _program(s["program"]), "prerequisites": tuple(s["prerequisites"])})
            for s in data["subtasks"]
        )
        for key in ("success", "fail"):
            data[key] = None if data[key] is None else _program(data[key])
        return cls(**data)


def _program(ops: list[list[Any]]) -> Program:
    return tuple(tuple(op) for op in ops)
