"""Any gymnasium environment as a simulator (torch-free): it reports its atoms in `info`.

`info["atoms"]` of `reset` and `step` maps each atom, written as in the task file (`at(red)`, thresholds in SI units:
`at(red, dist=0.1)`), to its truth. `info["success"]` is its own success check, where it has one.

Shapes: n environments of a call, A action dims.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from structrl.hints import hint
from structrl.lang.spec import TaskSpec
from structrl.seeding import generator
from structrl.sims.base import ActionSpec, AtomTest, Ids, Simulator, Start


class GymnasiumSimulator(Simulator):
    """Environments of `gymnasium.make`, stepped one after the other. Register it once per environment and vocabulary.

    An environment that says it has terminated stands still, with the atoms it had, until the task's horizon, success or
    `fail` ends the episode. `state` and `set_state` use the environment's own `get_state() -> {name: array}` and
    `set_state(...)`.

    Args:
        tasks: task specs; `command` of a task is passed to `reset` in `options`, with the initial state's number.
        num_envs: E.
        env: id of the environment; `module:Id` imports `module`, which registers it.
        env_args: keyword arguments for its constructor.

    Raises:
        ValueError: actions or observations that are no bounded boxes, or `info` without an atom of the tasks.
    """

    def __init__(
        self, tasks: Sequence[TaskSpec], num_envs: int, env: str, env_args: dict[str, Any] | None = None
    ) -> None:
        self.tasks, self.num_envs = tuple(tasks), num_envs
        # Horizons are the task file's.
        self.envs = [gymnasium.make(env, max_episode_steps=-1, **(env_args or {})) for _ in range(num_envs)]
        self._id = env
        space, action = self.envs[0].observation_space, self.envs[0].action_space
        self.control_hz = float(self.envs[0].metadata.get("render_fps", 1))
        if not isinstance(action, gymnasium.spaces.Box) or not action.is_bounded() or len(action.shape) != 1:
            raise ValueError(f"{env}: actions must be a vector with bounds (a Box), not {action}")
        A = action.shape[0]
        low, high = (tuple(map(float, bound)) for bound in (action.low, action.high))
        self.action = ActionSpec(tuple(f"action_{i}" for i in range(A)), ("",) * A, low, high)
        boxes = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {"state": space}
        for name, box in boxes.items():
            if not isinstance(box, gymnasium.spaces.Box):
                raise ValueError(f"{env}: observation '{name}' must be a Box, not {box}")
        self._single = not isinstance(space, gymnasium.spaces.Dict)
        # Policies compute in float32.
        dtypes = {name: np.float32 if box.dtype == np.float64 else box.dtype for name, box in boxes.items()}
        self.observation = {name: (tuple(box.shape or ()), dtypes[name]) for name, box in boxes.items()}
        self._width = max(len(task.atoms) for task in self.tasks)
        self._task = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, bool)
        self._seen: list[Any] = [None] * num_envs
        self._atoms = np.zeros((num_envs, self._width), bool)
        self._success = np.zeros(num_envs, bool)

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """`reset(seed=..., options={"init": ..., "command": ...})`, the seed a function of the start's counters."""
        for i, start in zip(ids.tolist(), starts, strict=True):
            seed = int(generator(*start.seed).integers(2**31))
            options = {"init": start.init, "command": self.tasks[start.task].command}
            self._task[i], self._over[i] = start.task, False
            self._seen[i], info = self.envs[i].reset(seed=seed, options=options)
            self._read(i, info)

    def step(self, ids: Ids, action: NDArray[np.float32]) -> None:
        """One `step` of every environment that has not terminated."""
        for i, row in zip(ids.tolist(), action, strict=True):
            if not self._over[i]:
                self._seen[i], _, terminated, truncated, info = self.envs[i].step(row)
                self._over[i] = terminated or truncated
                self._read(i, info)

    def _read(self, i: int, info: dict[str, Any]) -> None:
        reported = info.get("atoms")
        if reported is None:
            raise ValueError(f"{self._id}: `info` has no 'atoms'; it has: {', '.join(map(str, info)) or 'nothing'}")
        spec = self.tasks[self._task[i]]
        for k, atom in enumerate(map(str, spec.atoms)):
            if atom not in reported:
                raise ValueError(
                    f"{self._id}: info['atoms'] has no '{atom}', which {spec.path} needs{hint(atom, reported)}"
                )
            self._atoms[i, k] = reported[atom]
        self._atoms[i, len(spec.atoms) :] = False
        self._success[i] = info.get("success", False)
        if spec.success is None and "success" not in info:
            raise ValueError(f"{self._id}: `info` has no 'success'; state `success` in {spec.path}")

    def atoms(self, ids: Ids) -> NDArray[np.bool_]:
        """What `info` said."""
        return self._atoms[ids]

    def atom_values(self, ids: Ids) -> NDArray[np.float64]:
        """1 for a true atom, 0 for a false one: what is measured the environment keeps to itself."""
        used = np.arange(self._width) < np.array([len(self.tasks[k].atoms) for k in self._task[ids]])[:, None]
        return np.where(used, self._atoms[ids], np.nan)

    def atom_tests(self, task: int) -> tuple[AtomTest, ...]:
        """Said, or not."""
        return tuple(AtomTest(str(a), ">", 0.5, "", "the environment says so") for a in self.tasks[task].atoms)

    def observe(self, ids: Ids) -> dict[str, np.ndarray]:
        """The latest observation: `state`, or the entries of a dictionary."""
        rows = [{"state": self._seen[i]} if self._single else self._seen[i] for i in ids.tolist()]
        return {k: np.stack([row[k] for row in rows]).astype(dtype) for k, (_, dtype) in self.observation.items()}

    def unstable(self, ids: Ids) -> NDArray[np.bool_]:
        """Never: gymnasium has no word for it."""
        return np.zeros(len(ids), bool)

    def own_success(self, ids: Ids) -> NDArray[np.bool_]:
        """`info["success"]`."""
        return self._success[ids]

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """The environments' own `get_state`, beside what was last observed."""
        states = [self._own(i, "get_state")() for i in ids.tolist()]
        out = {f"env.{name}": np.stack([state[name] for state in states]) for name in states[0]}
        out |= {f"seen.{name}": value for name, value in self.observe(ids).items()}
        return out | {
            "task": self._task[ids],
            "over": self._over[ids],
            "atoms": self._atoms[ids],
            "success": self._success[ids],
        }

    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """The environments' own `set_state`."""
        for n, i in enumerate(ids.tolist()):
            self._own(i, "set_state")({k.removeprefix("env."): v[n] for k, v in state.items() if k.startswith("env.")})
            seen = {k.removeprefix("seen."): v[n] for k, v in state.items() if k.startswith("seen.")}
            self._seen[i] = seen["state"] if self._single else seen
        self._task[ids], self._over[ids] = state["task"], state["over"]
        self._atoms[ids], self._success[ids] = state["atoms"], state["success"]

    def _own(self, i: int, method: str) -> Any:
        found = getattr(self.envs[i].unwrapped, method, None)
        if found is None:
            raise NotImplementedError(f"{self._id} has no {method}(): its episodes cannot be stored and continued")
        return found

    def close(self) -> None:
        """Close every environment."""
        for each in self.envs:
            each.close()
