"""LiberoSimulator: LIBERO's 130 tasks behind the simulator contract.

Shapes: E environments, n of them asked for, A = 7 action dims, S padded state, F fixtures, C cameras.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from structrl.hints import hint
from structrl.lang.spec import TaskSpec
from structrl.seeding import generator
from structrl.sims.base import ActionSpec, AtomTest, Ids, Simulator, Start
from structrl.sims.libero import observe
from structrl.sims.libero.control import Exact, Fast
from structrl.sims.libero.predicates import VOCABULARY, AtomTable, atom_tests
from structrl.sims.libero.render import Renderer, new_context
from structrl.sims.libero.suite import LiberoTask, find_task
from structrl.sims.libero.world import Body, World

ACTION = ActionSpec(
    names=("x", "y", "z", "rx", "ry", "rz", "grip"),
    units=("5 cm/step",) * 3 + ("0.5 rad/step",) * 3 + ("-1 opens, 1 closes",),
    low=(-1.0,) * 7,
    high=(1.0,) * 7,
)
_WAIT = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])  # what everyone sends while the scene settles
_ACTUATORS = 9  # of the arm and its gripper: the part of a state that is not in LIBERO's own


class _Task:
    """A task's world with what is bound to it."""

    def __init__(self, world: World, control: Exact, atoms: AtomTable):
        self.world, self.control, self.atoms = world, control, atoms
        self.renderer: Renderer | None = None
        self.last_use = 0


class LiberoSimulator(Simulator):
    """LIBERO environments in this process; each may be at any of the tasks.

    A task's model is built when an environment first starts there (seconds) and shared by all its environments, each
    of which adds a few MB. Starts: `init` 0 to 49 is one of the benchmark's initial states, -1 draws one of them from
    the start's seed. Every start is followed by `settle` steps with an open, resting gripper.

    Args:
        tasks: task specs with `sim libero(suite=..., task=...)`.
        num_envs: E.
        cameras: `agentview`, `wrist` (robot0_eye_in_hand), or another camera of LIBERO's; none renders nothing.
        camera_size: px, images are square.
        proprio: `8d` or `9d`, see `structrl.sims.libero.observe`.
        tokens: also observe the poses of the entities that the task names.
        fast: leave out robosuite's redundant solver passes; faster, and not bit for bit what robosuite computes.
        settle: steps after a reset.
        models: how many models to keep when no environment is at their task.
        fixture_seed: LIBERO draws the poses of cabinets, stoves and so on when it builds a model, and keeps them in no
            initial state; this seeds that.

    Raises:
        ValueError: a task does not fit the simulator, or an argument is none of its values.
        LiberoMissingError: this Python has no LIBERO.
    """

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        num_envs: int,
        cameras: Sequence[str] = (),
        camera_size: int = 128,
        proprio: str = "8d",
        tokens: bool = False,
        fast: bool = False,
        settle: int = 10,
        models: int = 4,
        fixture_seed: int = 0,
    ):
        if proprio not in observe.PROPRIOCEPTION:
            raise ValueError(f"libero has no proprio '{proprio}'{hint(proprio, observe.PROPRIOCEPTION)}")
        if settle < 0 or models < 1 or camera_size < 1:
            raise ValueError(f"settle {settle} must be at least 0, models {models} and camera_size {camera_size} 1")
        self.tasks = tuple(tasks)
        self.num_envs = num_envs
        self.control_hz = VOCABULARY.control_hz
        self.action = ACTION
        self._own = [_libero_task(task) for task in self.tasks]
        self._tests = [
            atom_tests(task, f"{own.suite}/{own.index}") for task, own in zip(self.tasks, self._own, strict=True)
        ]
        self._entities = [observe.entities(task) for task in self.tasks]
        self._num_tokens = max(map(len, self._entities), default=0) if tokens else 0
        self.observation = {"state": ((observe.PROPRIOCEPTION[proprio],), np.float32)}
        self.observation |= {f"images.{name}": ((3, camera_size, camera_size), np.uint8) for name in cameras}
        if tokens:
            self.observation["tokens"] = ((self._num_tokens, observe.TOKEN_FEATURES), np.float32)
        self._cameras, self._camera_size, self._proprio = tuple(cameras), camera_size, proprio
        self._fast, self._settle, self._models, self._fixture_seed = fast, settle, models, fixture_seed
        self._num_atoms = max((len(task.atoms) for task in self.tasks), default=0)
        self._loaded: dict[int, _Task] = {}
        self._gl = None
        self._uses = 0
        self._task = np.full(num_envs, -1)
        self._bodies: list[Body | None] = [None] * num_envs
        self._unstable = np.zeros(num_envs, bool)

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Put environments `ids` at `starts`, settled.

        Raises:
            ValueError: a start names an initial state or a task that is not there.
        """
        for i, start in zip(ids.tolist(), starts, strict=True):
            task, body = self._move(i, start.task)
            count = len(task.world.inits)
            if not -1 <= start.init < count:
                raise ValueError(f"{start}: initial states are 0 to {count - 1}, or -1 to draw one")
            init = start.init if start.init >= 0 else int(generator(*start.seed).integers(count))
            task.world.start(body, init)
            for _ in range(self._settle):
                task.control.step(body, _WAIT)
            task.atoms.mark_start(body)
            self._unstable[i] = task.world.broken(body)

    def step(self, ids: Ids, action: NDArray[np.float32]) -> None:
        """Advance by one control step; actions beyond [-1, 1] are clipped."""
        for i, act in zip(ids.tolist(), np.asarray(action, np.float64), strict=True):
            task, body = self._at(i)
            task.control.step(body, act)
            self._unstable[i] |= task.world.broken(body)

    def atoms(self, ids: Ids) -> NDArray[np.bool_]:
        """Truth of the atoms of each environment's task, [n, max atoms]."""
        truth = np.zeros((len(ids), self._num_atoms), bool)
        for row, i in zip(truth, ids.tolist(), strict=True):
            task, body = self._at(i)
            task.world.use(body)
            found = task.atoms.truth(body)
            row[: len(found)] = found
        return truth

    def atom_values(self, ids: Ids) -> NDArray[np.float64]:
        """Measures behind `atoms`, [n, max atoms]; NaN is padding, and where LIBERO has no single measure."""
        values = np.full((len(ids), self._num_atoms), np.nan)
        for row, i in zip(values, ids.tolist(), strict=True):
            task, body = self._at(i)
            task.world.use(body)
            found = task.atoms.values(body)
            row[: len(found)] = found
        return values

    def atom_tests(self, task: int) -> tuple[AtomTest, ...]:
        """The test of each atom of a task."""
        return self._tests[task]

    def own_success(self, ids: Ids) -> NDArray[np.bool_]:
        """LIBERO's `_check_success`, [n]."""
        success = np.zeros(len(ids), bool)
        for k, i in enumerate(ids.tolist()):
            task, body = self._at(i)
            success[k] = bool(task.world.use(body)._check_success())
        return success

    def observe(self, ids: Ids) -> dict[str, np.ndarray]:
        """`state` [n, 8 or 9], `images.<camera>` [n, 3, size, size], `tokens` [n, entities, 21]; see `observe.py`."""
        seen = {name: np.zeros((len(ids), *shape), dtype) for name, (shape, dtype) in self.observation.items()}
        for k, i in enumerate(ids.tolist()):
            task, body = self._at(i)
            task.world.use(body)
            seen["state"][k] = observe.proprioception(task.world, body, self._proprio)
            if "tokens" in seen:
                names = self._entities[self._task[i]]
                seen["tokens"][k] = observe.tokens(task.world, body, names, self._num_tokens)
            if self._cameras:
                for name, image in zip(self._cameras, self._renderer(task).draw(body), strict=True):
                    seen[f"images.{name}"][k] = image
        return seen

    def unstable(self, ids: Ids) -> NDArray[np.bool_]:
        """Which environments had unstable physics since their reset, [n]."""
        return self._unstable[ids].copy()

    def world(self, env: int) -> tuple[World, Body]:
        """The model and the body of environment `env`, in place: true quantities for experts and tests."""
        task, body = self._at(env)
        task.world.use(body)
        return task.world, body

    def _at(self, env: int) -> tuple[_Task, Body]:
        body = self._bodies[env]
        if body is None:
            raise ValueError(f"environment {env} was never reset")
        return self._loaded[int(self._task[env])], body

    def _move(self, env: int, row: int) -> tuple[_Task, Body]:
        """Environment `env` at task `row`, whose model is built if need be."""
        if not 0 <= row < len(self.tasks):
            raise ValueError(f"environment {env}: no task {row}, there are {len(self.tasks)}")
        old = self._bodies[env]
        if old is not None and self._task[env] != row:
            self._loaded[int(self._task[env])].world.free(old)
            old = self._bodies[env] = None
        if old is None:
            self._task[env] = -1
            task = self._load(row)
            self._bodies[env] = task.world.new_body()
            self._task[env] = row
        return self._at(env)

    def _load(self, row: int) -> _Task:
        self._uses += 1
        if row not in self._loaded:
            idle = sorted(set(self._loaded) - set(self._task.tolist()), key=lambda r: self._loaded[r].last_use)
            for oldest in idle[: max(0, len(self._loaded) + 1 - self._models)]:
                self._unload(oldest)
            world = World(self._own[row], self._fixture_seed, textures=bool(self._cameras))
            control = Fast(world) if self._fast else Exact(world)
            atoms = AtomTable(self.tasks[row], self._tests[row], world)
            self._loaded[row] = _Task(world, control, atoms)
        self._loaded[row].last_use = self._uses
        return self._loaded[row]

    def _unload(self, row: int) -> None:
        task = self._loaded.pop(row)
        if task.renderer is not None:
            task.renderer.close()
        task.world.close()

    def _renderer(self, task: _Task) -> Renderer:
        if task.renderer is None:
            if self._gl is None:
                self._gl = new_context()
            task.renderer = Renderer(task.world, self._cameras, self._camera_size, self._gl)
        return task.renderer

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """`physics` [n, S], `fixtures` [n, F, 7], `control` [n, 14], `heights` [n, atoms], `task` and `unstable`."""
        n = len(ids)
        widths = [2 * own.width + _ACTUATORS - 1 for own in self._own]
        state = {
            "physics": np.zeros((n, max(widths))),
            "fixtures": np.zeros((n, max(own.fixtures for own in self._own), 7)),
            "control": np.zeros((n, 14)),
            "heights": np.zeros((n, self._num_atoms)),
            "task": self._task[ids].copy(),
            "unstable": self._unstable[ids].copy(),
        }
        for k, i in enumerate(ids.tolist()):
            task, body = self._at(i)
            physics = task.world.physics(body)
            state["physics"][k, : len(physics)] = physics
            state["fixtures"][k, : len(body.fixtures)] = body.fixtures
            state["control"][k] = np.concatenate([body.goal_pos, body.goal_ori.reshape(9), body.grip])
            state["heights"][k, : len(body.start_heights)] = body.start_heights
        return state

    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned; models are built if need be."""
        for k, i in enumerate(ids.tolist()):
            task, body = self._move(i, int(state["task"][k]))
            fixtures = state["fixtures"][k, : len(task.world.fixtures)]
            body.fixtures = task.world.fixtures if np.array_equal(fixtures, task.world.fixtures) else fixtures.copy()
            body.goal_pos, body.goal_ori = (
                state["control"][k, :3].copy(),
                state["control"][k, 3:12].reshape(3, 3).copy(),
            )
            body.grip = state["control"][k, 12:].copy()
            body.start_heights = state["heights"][k, : len(self.tasks[self._task[i]].atoms)].copy()
            task.world.set_physics(body, state["physics"][k])
            self._unstable[i] = state["unstable"][k]

    def close(self) -> None:
        """Release all models."""
        self._bodies = [None] * self.num_envs
        for row in list(self._loaded):
            self._unload(row)
        if self._gl is not None:
            self._gl.free()
            self._gl = None


def _libero_task(task: TaskSpec) -> LiberoTask:
    """The LIBERO task that a task file names."""
    if task.sim not in (None, "libero"):
        raise ValueError(f"{task.path}: the task's simulator is '{task.sim}', not 'libero'")
    known = ("suite", "task")
    for argument in task.sim_args:
        if argument not in known:
            raise ValueError(f"{task.path}: libero has no argument '{argument}'{hint(argument, known)}")
    missing = [name for name in known if name not in task.sim_args]
    if missing:
        raise ValueError(
            f'{task.path}: libero needs `{"` and `".join(missing)}`: sim libero(suite="libero_10", task=2)'
        )
    suite, index = task.sim_args["suite"], task.sim_args["task"]
    if not isinstance(suite, str) or not isinstance(index, int):
        raise ValueError(f"{task.path}: libero's `suite` is a name and `task` a number, not {suite!r} and {index!r}")
    try:
        return find_task(suite, index)
    except ValueError as error:
        raise ValueError(f"{task.path}: {error}") from None
