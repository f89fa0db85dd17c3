"""A scripted toy simulator: a point that actions push around; atoms from its position or from given traces."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from structrl import seeding
from structrl.lang.spec import AtomSpec, Program, SubtaskSpec, TaskSpec
from structrl.sims.base import ActionSpec, AtomTest, Simulator, Start

STEP = 0.1  # distance per step of a full action
THRESHOLD = 0.6  # atom i holds while the point's coordinate i (modulo dims) is above it


def toy_task(
    subtasks: int = 2,
    *,
    name: str = "toy",
    horizon: int | None = 20,
    chain: bool = True,
    programs: Sequence[Program] | None = None,
    atoms: int | None = None,
    success: Program | str | None = "all",
    fail: Program | None = None,
    **fields: Any,
) -> TaskSpec:
    """Subtask i is atom i (or `programs[i]`), in a chain or unordered; success is all of the atoms by default."""
    programs = programs or [(("atom", i),) for i in range(subtasks)]
    count = atoms or subtasks
    if success == "all":
        success = (*((("atom", i)) for i in range(count)), ("and", count))
    specs = tuple(
        SubtaskSpec(f"s{i}", f"above(axis_{i})", tuple(p), tuple(range(i)) if chain else (), duration=5.0)
        for i, p in enumerate(programs)
    )
    values: dict[str, Any] = {"command": f"Do {name}.", "sim": "toy", "path": f"tasks/{name}.task"} | fields
    return TaskSpec(
        name, tuple(AtomSpec("above", (f"axis_{i}",)) for i in range(count)), specs,
        horizon=horizon, success=success, fail=fail, **values,
    )  # fmt: skip


def picture(position: np.ndarray, size: int) -> np.ndarray:
    """Pictures [n, 3, size, size] of points [n, dims >= 2]: up is axis 1, right is axis 0."""
    out = np.zeros((len(position), 3, size, size), np.uint8)
    row = np.clip((1 - position[:, 1]) / 2 * size, 0, size - 1).astype(int)
    column = np.clip((1 + position[:, 0]) / 2 * size, 0, size - 1).astype(int)
    out[np.arange(len(out)), :, row, column] = 255
    return out


class ToySimulator(Simulator):
    """Position in [-1, 1]^dims moves by STEP * action; it starts in [-0.5, 0.5]^dims, drawn from the start's seed.

    Args:
        tasks: task specs (`toy_task`).
        num_envs: E.
        dims: action dims.
        trace: start -> bool [T+1, atoms]; the atoms of an episode by step (the last row goes on) instead of dynamics.
        unstable_at: start -> step from which the episode's physics is unstable, or None.
        shift: added to the observed position (not to the true one).
        pictures: size of `images.front`, in which a white square is where the point is; 0: none.
    """

    film: ClassVar = {"pictures": 16}

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        num_envs: int,
        dims: int = 2,
        trace: Callable[[Start], np.ndarray] | None = None,
        unstable_at: Callable[[Start], int | None] | None = None,
        shift: float = 0.0,
        pictures: int = 0,
    ):
        self.tasks, self.num_envs, self.control_hz = tuple(tasks), num_envs, 10.0
        self.action = ActionSpec(
            tuple(f"axis_{i}" for i in range(dims)), ("0.1",) * dims, (-1.0,) * dims, (1.0,) * dims
        )
        self.observation = {"state": ((dims,), np.float32), "tokens": ((dims, 3), np.float32)}
        self._pictures = pictures
        if pictures:
            self.observation["images.front"] = ((3, pictures, pictures), np.uint8)
        self._trace, self._unstable_at, self._shift = trace, unstable_at, shift
        self._width = max(len(spec.atoms) for spec in tasks)
        self.position = np.zeros((num_envs, dims))
        self.time = np.zeros(num_envs, np.int64)
        self.starts: list[Start | None] = [None] * num_envs
        self.resets: list[Start] = []  # every start ever reset to, redraws included
        self.steps: list[np.ndarray] = []  # ids of every step
        self.observed: list[np.ndarray] = []  # ids of every observation

    def _check(self, ids: np.ndarray) -> None:
        assert len(ids) and (np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < self.num_envs, ids

    def reset(self, ids, starts):
        self._check(ids)
        for i, start in zip(ids, starts, strict=True):
            self.position[i] = seeding.generator(*start.seed).uniform(-0.5, 0.5, self.position.shape[1])
            self.time[i] = 0
            self.starts[i] = start
            self.resets.append(start)

    def step(self, ids, action):
        self._check(ids)
        assert action.shape == (len(ids), self.position.shape[1]) and np.abs(action).max() <= 1
        self.position[ids] = np.clip(self.position[ids] + STEP * action, -1, 1)
        self.time[ids] += 1
        self.steps.append(ids.copy())

    def atoms(self, ids):
        if self._trace is None:
            return self.atom_values(ids) > THRESHOLD
        out = np.zeros((len(ids), self._width), bool)
        for row, i in zip(out, ids, strict=True):
            trace = self._trace(self.starts[i])
            row[: trace.shape[1]] = trace[min(self.time[i], len(trace) - 1)]
        return out

    def atom_values(self, ids):
        out = np.full((len(ids), self._width), np.nan)
        for row, i in zip(out, ids, strict=True):
            count = len(self.tasks[self.starts[i].task].atoms)
            row[:count] = self.position[i, np.arange(count) % self.position.shape[1]]
        return out

    def atom_tests(self, task):
        return tuple(
            AtomTest(str(a), ">", THRESHOLD, "m", "the point is far along the axis") for a in self.tasks[task].atoms
        )

    def observe(self, ids):
        self._check(ids)
        self.observed.append(ids.copy())
        seen = (self.position[ids] + self._shift).astype(np.float32)
        tokens = np.stack([seen, np.full_like(seen, THRESHOLD), seen > THRESHOLD], -1).astype(np.float32)
        seen_too = {"images.front": picture(self.position[ids], self._pictures)} if self._pictures else {}
        return {"state": seen, "tokens": tokens, **seen_too}

    def unstable(self, ids):
        if self._unstable_at is None:
            return np.zeros(len(ids), bool)
        at = [self._unstable_at(self.starts[i]) for i in ids]
        return np.array([limit is not None and t >= limit for limit, t in zip(at, self.time[ids], strict=True)])

    def state(self, ids):
        starts = np.empty(len(ids), object)
        starts[:] = [self.starts[i] for i in ids]
        return {"position": self.position[ids].copy(), "time": self.time[ids].copy(), "start": starts}

    def set_state(self, ids, state):
        self.position[ids], self.time[ids] = state["position"], state["time"]
        for i, start in zip(ids, state["start"], strict=True):
            self.starts[i] = start
