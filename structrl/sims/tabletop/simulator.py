"""TabletopSimulator: a batch of environments of one tabletop scene in this process, stepped by `mujoco.batch`.

Shapes: E environments, n of them asked for, A = 5 action dims.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray

from structrl.lang.spec import TaskSpec
from structrl.sims.base import ActionSpec, AtomTest, Ids, Simulator, Start
from structrl.sims.tabletop import scene
from structrl.sims.tabletop.observation import FEATURES, STATE, observe
from structrl.sims.tabletop.predicates import VOCABULARY, AtomTable
from structrl.sims.tabletop.render import Cameras
from structrl.sims.tabletop.scene import FINGER_OPEN, HAND, Scene, View
from structrl.sims.tabletop.settings import BUTTON_DOWN, BUTTON_UP, draw_layout
from structrl.sims.tabletop.shift import read_shift

STEP = np.array([0.025, 0.025, 0.025, 0.15])  # m, m, m, rad: what action 1 adds to the commanded hand pose
LEASH = np.array([0.05, 0.05, 0.05, 0.3])  # how far the command may run ahead of the hand
REST = (0.0, 0.0, 0.0, 0.0, 1.0)  # the action that changes nothing of a fresh start
ACTION = ActionSpec(
    names=("x", "y", "z", "yaw", "grip"),
    units=("2.5 cm/step", "2.5 cm/step", "2.5 cm/step", "0.15 rad/step", "opening: -1 shut, 1 wide"),
    low=(-1.0,) * 5,
    high=(1.0,) * 5,
)


class TabletopSimulator(Simulator):
    """Tabletop environments; every task must name the same scene.

    Args:
        tasks: task specs with `sim tabletop(scene=...)`.
        num_envs: E.
        threads: threads of MuJoCo's batch, 0 = all CPUs. Changes no result, bit for bit.
        shift: what is different from the world of the demonstrations, the small twin of the gap between simulation and
            reality: see `structrl.sims.tabletop.shift.Shift`.
        cameras: names of cameras whose pictures are observed in place of the object-state tokens.
        camera_size: their height and width, pixels.

    Attributes:
        scene: names and places.
        shift: as it was read.

    Raises:
        ValueError: a task does not fit the scene, `shift` has an unknown key or a wrong value, or cameras are not the
            scene's.
    """

    film: ClassVar = {"cameras": ["overview"], "camera_size": 320}

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        num_envs: int,
        threads: int = 0,
        shift: Mapping[str, Any] | None = None,
        cameras: Sequence[str] = (),
        camera_size: int = 64,
    ):
        self.tasks = tuple(tasks)
        self.num_envs = num_envs
        self.control_hz = scene.CONTROL_HZ
        self.action = ACTION
        self.shift = read_shift(shift)
        name = _scene_of(self.tasks)
        self._table = AtomTable(self.tasks, name)
        self.scene = Scene(name, self.shift.object_size, self.shift.friction)
        self.model = self.scene.model
        if (self.scene.half_size[:, 1] > 0.9 * FINGER_OPEN).any():
            raise ValueError(f"shift: objects scaled by {self.shift.object_size:g} do not fit between the fingers")
        rows = len(self.scene.objects) + len(self.scene.setting.tokens)
        self.observation = {"state": ((STATE,), np.float32)}
        bias = self.shift.camera_bias
        self.cameras = Cameras(self.model, cameras, camera_size, bias.position, bias.angle) if len(cameras) else None
        if self.cameras is None:
            self.observation["tokens"] = ((rows, FEATURES), np.float32)
        else:
            self.observation |= self.cameras.observation
        self.batch = Batch(self.model, num_envs, threads)
        self._qpos, self._ctrl = self.batch.bind("qpos"), self.batch.bind("ctrl")
        self._mocap = self.batch.bind("mocap_pos")
        self._qvel = self.batch.bind("qvel")
        buttons = len(self.scene.buttons)
        self._task = np.zeros(num_envs, np.int64)
        self._unstable = np.zeros(num_envs, bool)
        self._down = np.zeros((num_envs, buttons), bool)
        self._pressed = np.zeros((num_envs, buttons), bool)  # in the last step
        self._presses = np.zeros((num_envs, buttons), np.int64)  # since reset
        self._late = np.zeros((num_envs, self.shift.latency, len(REST)))  # actions not yet taken, oldest first
        # What `state` carries besides the physics
        self._kept = {
            key: getattr(self, f"_{key}") for key in ("task", "unstable", "down", "pressed", "presses", "late")
        }

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Put environments `ids` at random layouts drawn from `starts`' seeds, settled.

        Raises:
            ValueError: a start names a stored initial state (there are none) or a task that is not there.
        """
        for start in starts:
            if start.init != -1 or not 0 <= start.task < len(self.tasks):
                raise ValueError(f"{start}: tabletop draws its starts: init must be -1, task < {len(self.tasks)}")
        if not len(ids):
            return
        here, setting = self.scene, self.scene.setting
        self.batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE)
        for i, start in zip(ids, starts, strict=True):
            layout = draw_layout(setting, start.seed)
            self._task[i] = start.task
            self._mocap[i, here.roots] = np.c_[layout.fixtures, here.base[:, 2]]
            self._qpos[i, HAND] = self._ctrl[i, HAND] = layout.hand
            self._qpos[i, scene.FINGERS] = self._ctrl[i, 4:] = FINGER_OPEN
            self._qpos[i, here.positions] = np.c_[layout.objects, here.half_size[:, 2]]
            self._qpos[i, here.quaternions[:, 0]] = np.cos(layout.yaw / 2)
            self._qpos[i, here.quaternions[:, 3]] = np.sin(layout.yaw / 2)
            self._qpos[i, here.joints] = [each.start for each in setting.moving.values()]
        self._unstable[ids] = self._down[ids] = self._pressed[ids] = False
        self._presses[ids] = 0
        self._late[ids] = REST
        self._advance(ids, scene.SETTLE)

    def step(self, ids: Ids, action: NDArray[np.float32]) -> None:
        """Advance by one control step; actions beyond [-1, 1] are clipped."""
        if not len(ids):
            return
        action_nA = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        if self.shift.latency:
            queue = np.concatenate([self._late[ids], action_nA[:, None]], axis=1)
            action_nA, self._late[ids] = queue[:, 0], queue[:, 1:]
        hand = self._qpos[ids, HAND]
        target = np.clip(self._ctrl[ids, HAND] + STEP * action_nA[:, :4], hand - LEASH, hand + LEASH)
        # The command is MuJoCo's own control vector, so it is part of the physics state.
        self._ctrl[ids, HAND] = np.clip(target, *scene.HAND_RANGE)
        self._ctrl[ids, 4:] = (FINGER_OPEN / 2) * (1 + action_nA[:, 4:])
        self._advance(ids, scene.SUBSTEPS)
        if len(self.scene.buttons):
            self._count_presses(ids)

    def _advance(self, ids: Ids, substeps: int) -> None:
        with scene.quiet():
            try:
                self.batch.step(ids, nstep=substeps)
            except SimulationError as error:  # the engine gave up on these; the others have been stepped
                self._unstable[np.asarray(error.ids)] = True
        # MuJoCo resets a diverging environment by itself and counts it; every other warning means wrong physics too.
        self._unstable[ids] |= self.batch.warning[ids, :, 1].any(1)

    def _count_presses(self, ids: Ids) -> None:
        depth = self._qpos[ids[:, None], self.scene.joints[self.scene.buttons]]
        before = self._down[ids]
        self._pressed[ids] = pressed = ~before & (depth < BUTTON_DOWN)
        self._presses[ids] += pressed
        self._down[ids] = (before & (depth < BUTTON_UP)) | pressed

    def view(self, ids: Ids) -> View:
        """True physical quantities, for experts, predicates and tests; policies see `observe` only."""
        return View(self.scene, self.batch, ids, self._presses[ids], self._pressed[ids])

    def atoms(self, ids: Ids) -> NDArray[np.bool_]:
        """Truth of the atoms of each environment's task, [n, max atoms]."""
        return self._table.truth(self.atom_values(ids), self._task[ids])

    def atom_values(self, ids: Ids) -> NDArray[np.float64]:
        """Measures behind `atoms`, [n, max atoms]; NaN is padding."""
        return self._table.values(self.view(ids), self._task[ids])

    def atom_tests(self, task: int) -> tuple[AtomTest, ...]:
        """The test of each atom of a task."""
        return self._table.tests[task]

    def observe(self, ids: Ids) -> dict[str, np.ndarray]:
        """`state` [n, 15] and `tokens` [n, rows, 15], see `structrl.sims.tabletop.observation`.

        With cameras, `images.<camera>` uint8 [n, 3, h, w] in place of the tokens.
        """
        seen = observe(self.view(ids), self._qvel[ids, HAND], LEASH, self.shift.object_bias)
        if self.cameras is None:
            return seen
        return {"state": seen["state"], **self.cameras.observe(self.batch, ids)}

    def unstable(self, ids: Ids) -> NDArray[np.bool_]:
        """Which environments had unstable physics since their reset, [n]."""
        return self._unstable[ids].copy()

    def close(self) -> None:
        """Free the cameras' OpenGL context."""
        if self.cameras is not None:
            self.cameras.close()

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """`physics` [n, S] (MuJoCo's integration state), `task`, `unstable` [n], the buttons' latches and counters
        `down`, `pressed`, `presses` [n, buttons], and `late` [n, latency, A], the actions not yet taken."""
        return {"physics": self.batch.state[ids].copy()} | {key: kept[ids].copy() for key, kept in self._kept.items()}

    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""
        if not len(ids):
            return
        self.batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE)  # clears the warning counters
        self.batch.state[ids] = state["physics"]
        for key, kept in self._kept.items():
            kept[ids] = state[key]


def _scene_of(tasks: Sequence[TaskSpec]) -> str:
    """The one scene that all tasks name."""
    names = set()
    for task in tasks:
        if task.sim not in (None, "tabletop"):
            raise ValueError(f"{task.path}: the task's simulator is '{task.sim}', not 'tabletop'")
        unknown = set(task.sim_args) - {"scene"}
        if unknown:
            raise ValueError(f"{task.path}: tabletop has no argument '{min(unknown)}'; it has: scene")
        name = task.sim_args.get("scene", "lunch")
        if name not in VOCABULARY.scenes:
            raise ValueError(f"{task.path}: no scene '{name}'; tabletop has: {', '.join(VOCABULARY.scenes)}")
        names.add(name)
    if len(names) != 1:
        raise ValueError(f"one tabletop simulator runs one scene; these tasks name {sorted(names) or 'none'}")
    return names.pop()
