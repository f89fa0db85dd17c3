"""TabletopSimulator: a batch of tabletop scenes in this process, stepped by `mujoco.batch`.

Shapes: E environments, n of them asked for, A = 5 action dims, O objects, F features of an object-state token.
"""

import difflib
from collections.abc import Sequence
from typing import Any, ClassVar

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray

from structrl.lang.spec import TaskSpec
from structrl.sims.base import ActionSpec, AtomTest, Ids, Simulator, Start
from structrl.sims.tabletop import scene
from structrl.sims.tabletop.predicates import VOCABULARY, AtomTable
from structrl.sims.tabletop.render import Cameras
from structrl.sims.tabletop.scene import FINGER_OPEN, HAND, View, outside_box

STEP = np.array([0.025, 0.025, 0.025, 0.15])  # m, m, m, rad: what action 1 adds to the commanded hand pose
LEASH = np.array([0.05, 0.05, 0.05, 0.3])  # how far the command may run ahead of the hand
TOKENS = (*scene.OBJECTS, scene.BOX)
SHIFTS = ("object_bias", "camera_bias")
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
        shift: what the *observed* world gets wrong, the small twin of a camera calibration error:
            `object_bias` [dx, dy] in m is added to the observed positions of objects (not of the box);
            `camera_bias` {position: [x, y, z] in m, angle: rad} is by how much every camera stands off.
        cameras: names of cameras whose pictures are observed in place of the object-state tokens.
        camera_size: their height and width, pixels.

    Raises:
        ValueError: a task does not fit the scene, `shift` has an unknown key or shape, or cameras are not the scene's.
    """

    film: ClassVar = {"cameras": ["overview"], "camera_size": 320}

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        num_envs: int,
        threads: int = 0,
        shift: dict[str, Any] | None = None,
        cameras: Sequence[str] = (),
        camera_size: int = 64,
    ):
        self.tasks = tuple(tasks)
        self.num_envs = num_envs
        self.control_hz = scene.CONTROL_HZ
        self.action = ACTION
        self.observation = {"state": ((15,), np.float32)}
        self._bias = _object_bias(shift)
        self._table = AtomTable(self.tasks, _scene_of(self.tasks))
        self.model = scene.load_model()
        bias = (shift or {}).get("camera_bias", {})
        self.cameras = Cameras(self.model, cameras, camera_size, **bias) if len(cameras) else None
        if self.cameras is None:
            self.observation["tokens"] = ((len(TOKENS), 15), np.float32)
        else:
            self.observation |= self.cameras.observation
        self.batch = Batch(self.model, num_envs, threads)
        self._qpos, self._ctrl = self.batch.bind("qpos"), self.batch.bind("ctrl")
        self._mocap = self.batch.bind("mocap_pos")
        self._qvel = self.batch.bind("qvel")
        self._task = np.zeros(num_envs, np.int64)
        self._unstable = np.zeros(num_envs, bool)

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
        self.batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE)
        for i, start in zip(ids, starts, strict=True):
            layout = scene.Layout(start.seed)
            self._task[i] = start.task
            self._mocap[i, 0] = layout.box
            self._qpos[i, HAND] = self._ctrl[i, HAND] = layout.hand
            self._qpos[i, scene.FINGERS] = self._ctrl[i, 4:] = FINGER_OPEN
            self._qpos[i, scene.OBJECT_POSITIONS] = layout.objects
            self._qpos[i, scene.LID] = scene.LID_OPEN
        self._unstable[ids] = False
        self._advance(ids, scene.SETTLE)

    def step(self, ids: Ids, action: NDArray[np.float32]) -> None:
        """Advance by one control step; actions beyond [-1, 1] are clipped."""
        if not len(ids):
            return
        action_nA = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        hand = self._qpos[ids, HAND]
        target = np.clip(self._ctrl[ids, HAND] + STEP * action_nA[:, :4], hand - LEASH, hand + LEASH)
        # The command is MuJoCo's own control vector, so it is part of the physics state.
        self._ctrl[ids, HAND] = np.clip(target, *scene.HAND_RANGE)
        self._ctrl[ids, 4:] = (FINGER_OPEN / 2) * (1 + action_nA[:, 4:])
        self._advance(ids, scene.SUBSTEPS)

    def _advance(self, ids: Ids, substeps: int) -> None:
        with scene.quiet():
            try:
                self.batch.step(ids, nstep=substeps)
            except SimulationError as error:  # the engine gave up on these; the others have been stepped
                self._unstable[np.asarray(error.ids)] = True
        # MuJoCo resets a diverging environment by itself and counts it; every other warning means wrong physics too.
        self._unstable[ids] |= self.batch.warning[ids, :, 1].any(1)

    def view(self, ids: Ids) -> View:
        """True physical quantities, for experts, predicates and tests; policies see `observe` only."""
        return View(self.batch, ids)

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
        """`state` [n, 15]: hand pose, lead of the command, velocity, fingers. `tokens` [n, 3, 15]: apple, drink, box.

        A token holds half extents, position relative to the hand (coarse, and fine through tanh), position relative to
        the box, inside the box or not, and cosine and sine of the lid's angle (zeros where they mean nothing). All is
        about unit scale. Objects' positions carry the shift, and what derives from them does too. With cameras,
        `images.<camera>` uint8 [n, 3, h, w] in place of the tokens.
        """
        view = self.view(ids)
        velocity = self._qvel[ids, HAND]
        state = np.concatenate(
            [
                (view.hand - [0, 0, 0.15, 0]) / [0.2, 0.2, 0.1, 1],
                (view.command[:, HAND] - view.hand) / LEASH,
                velocity / [0.3, 0.3, 0.3, 1.5],
                view.fingers / (FINGER_OPEN / 2) - 1,
                view.command[:, 4:5] / (FINGER_OPEN / 2) - 1,
            ],
            axis=1,
        )
        if self.cameras is not None:
            return {"state": state.astype(np.float32), **self.cameras.observe(self.batch, ids)}
        position = np.concatenate([view.objects + self._bias, view.box[:, None]], axis=1)
        to_hand = position - view.hand[:, None, :3]
        to_box = position - view.box[:, None]
        tokens = np.zeros((len(ids), len(TOKENS), 15))
        tokens[..., 0:3] = np.concatenate([scene.HALF_SIZE, scene.BOX_HALF_SIZE[None]]) / 0.1
        tokens[..., 3:6] = to_hand / 0.1
        tokens[..., 6:9] = np.tanh(to_hand / np.array([0.02] * len(scene.OBJECTS) + [0.03])[:, None])
        tokens[..., 9:12] = to_box / 0.1
        tokens[:, :-1, 12] = outside_box(to_box[:, :-1]) < 0
        tokens[:, -1, 13], tokens[:, -1, 14] = np.cos(view.lid), np.sin(view.lid)
        return {"state": state.astype(np.float32), "tokens": tokens.astype(np.float32)}

    def unstable(self, ids: Ids) -> NDArray[np.bool_]:
        """Which environments had unstable physics since their reset, [n]."""
        return self._unstable[ids].copy()

    def close(self) -> None:
        """Free the cameras' OpenGL context."""
        if self.cameras is not None:
            self.cameras.close()

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """`physics` [n, S] (MuJoCo's integration state), `task` [n], `unstable` [n]."""
        return {
            "physics": self.batch.state[ids].copy(),
            "task": self._task[ids].copy(),
            "unstable": self._unstable[ids].copy(),
        }

    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""
        if not len(ids):
            return
        self.batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE)  # clears the warning counters
        self.batch.state[ids] = state["physics"]
        self._task[ids], self._unstable[ids] = state["task"], state["unstable"]


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


def _object_bias(shift: dict[str, Any] | None) -> NDArray[np.float64]:
    shift = shift or {}
    for key in shift:
        if key not in SHIFTS:
            close = difflib.get_close_matches(key, SHIFTS, n=1)
            raise ValueError(
                f"shift: unknown key '{key}'; "
                + (f"did you mean '{close[0]}'?" if close else f"known: {', '.join(SHIFTS)}")
            )
    bias = np.asarray(shift.get("object_bias", (0.0, 0.0)), np.float64)
    if bias.shape != (2,) or not np.isfinite(bias).all():
        raise ValueError(f"shift: object_bias must be two finite numbers [dx, dy] in m, not {shift['object_bias']}")
    return np.append(bias, 0.0)
