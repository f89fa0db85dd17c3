"""A compiled scene: names and places in MuJoCo's state, and a named view of the batch's physics.

Shapes: n environments asked for, O objects, M mocap bodies (fixtures' bases), J joints of fixtures, all float64, metres
and radians, world frame (z up, table at z = 0).
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from structrl.sims.base import Ids
from structrl.sims.tabletop.settings import SETTINGS, Array

TABLE, GRIPPER = "table_1", "gripper_1"
TIMESTEP, SUBSTEPS = 0.01, 5
CONTROL_HZ = 1 / (TIMESTEP * SUBSTEPS)
SETTLE = 20  # substeps after which a fresh layout is at rest (checked in the tests)

# Columns of qpos. The hand's four joints come first and its body starts at the origin, so qpos is its pose.
HAND = slice(0, 4)  # x, y, z, yaw
FINGERS = slice(4, 6)  # opening of each, 0 .. 0.045
HAND_RANGE = np.array([[-0.36, -0.32, 0.008, -1.7], [0.46, 0.32, 0.34, 1.7]])
FINGER_OPEN = 0.045
SENSORS_OFF = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
SPHERE, CYLINDER, BOX = (int(getattr(mujoco.mjtGeom, f"mjGEOM_{each}")) for each in ("SPHERE", "CYLINDER", "BOX"))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MuJoCo's warnings off stderr and out of ./MUJOCO_LOG.TXT; `batch.warning` counts them all the same."""
    before, silent = mujoco.MjLogConfig.get(), mujoco.MjLogConfig.get()
    silent.logto_console = silent.logto_file = False
    silent.set()
    try:
        yield
    finally:
        before.set()


def load_model(name: str, object_size: float = 1.0, friction: float = 1.0) -> mujoco.MjModel:
    """The compiled scene. Sensors are switched off: only `View.gaps` wants them, and they cost 8 % of a step.

    Args:
        name: of the scene.
        object_size: scale of the objects' geoms; masses stay.
        friction: scale of all friction coefficients (MuJoCo takes the larger one of two geoms in contact).
    """
    folder = files("structrl.sims.tabletop")
    shared = {"common.xml": (folder / "common.xml").read_bytes()}
    spec = mujoco.MjSpec.from_string((folder / f"{name}.xml").read_text("utf-8"), include=shared)
    for body in spec.bodies:
        if object_size != 1 and any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in body.joints):
            for geom in body.geoms:
                for part in (geom.size, geom.pos, geom.fromto):  # fromto is NaN where it is not given
                    part *= object_size
    if friction != 1:
        for geom in spec.geoms:
            geom.friction *= friction
    return spec.compile()


@dataclass(frozen=True)
class Mark:
    """A box fixed to a fixture: centre `offset` from the fixture's base, `half` extents.

    It moves with `joint` (a column of `View.joints`, -1: none), a slide along `axis` or, with an `anchor`, a hinge.
    """

    root: int  # row of mocap_pos
    offset: Array
    half: Array
    joint: int
    axis: Array
    anchor: Array | None


class Scene:
    """A compiled scene and where in it everything is; what is not said in `Setting` is read from the model.

    Args:
        name: of the scene, a key of `SETTINGS`.
        object_size: see `load_model`.
        friction: see `load_model`.
    """

    def __init__(self, name: str, object_size: float = 1.0, friction: float = 1.0):
        self.name, self.setting = name, SETTINGS[name]
        self.model = model = load_model(name, object_size, friction)
        free = [j for j in range(model.njnt) if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE]
        self.objects = tuple(model.joint(j).name for j in free)
        start = model.jnt_qposadr[free]
        self.positions = start[:, None] + np.arange(3)  # [O, 3] into qpos
        self.quaternions = start[:, None] + np.arange(3, 7)  # [O, 4]
        geoms = [model.geom(each) for each in self.objects]
        self.shapes = [int(geom.type[0]) for geom in geoms]
        self.half_size = np.array([_half_size(shape, g.size) for shape, g in zip(self.shapes, geoms, strict=True)])
        self.roots = [int(model.body(each).mocapid[0]) for each in self.setting.fixtures]
        self.base = model.body_pos[[model.body(each).id for each in self.setting.fixtures]]  # [M, 3], z counts
        self.moving = tuple(self.setting.moving)
        joints = [model.joint(each.joint) for each in self.setting.moving.values()]
        self.joints = np.array([joint.qposadr[0] for joint in joints], np.int64)  # [J] into qpos
        self.hinge = np.array([joint.type[0] == mujoco.mjtJoint.mjJNT_HINGE for joint in joints], bool)
        self.buttons = np.array(
            [self.moving.index(each) for each in self.setting.buttons], np.int64
        )  # columns of joints
        self.marks = {model.site(s).name: self._mark(s) for s in range(model.nsite)}
        self.containers = [each for each in self.setting.fixtures if f"{each}_interior" in self.marks]

    def _mark(self, site: int) -> Mark:
        model = self.model
        offset, body, joint = model.site_pos[site].copy(), int(model.site_bodyid[site]), -1
        axis, anchor = np.zeros(3), None
        while model.body_mocapid[body] < 0:
            j = int(model.body_jntadr[body])
            if j >= 0:
                joint, axis = self.joints.tolist().index(model.jnt_qposadr[j]), model.jnt_axis[j]
                if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE:
                    anchor = model.body_pos[body] + model.jnt_pos[j]
            offset, body = offset + model.body_pos[body], int(model.body_parentid[body])
        return Mark(int(model.body_mocapid[body]), offset, model.site_size[site], joint, axis, anchor)


def _half_size(shape: int, size: Array) -> Array:
    return {SPHERE: size[[0, 0, 0]], CYLINDER: size[[0, 0, 1]], BOX: size}[shape]


class View:
    """True physical quantities of environments `ids`, by name (a copy, taken when constructed).

    `presses` (since reset) and `pressed` (in the last step) are kept by the simulator, [n, buttons].
    """

    def __init__(self, scene: Scene, batch: Batch, ids: Ids, presses: NDArray[np.int64], pressed: NDArray[np.bool_]):
        qpos = batch.bind("qpos")[ids]
        self.scene = scene
        self.hand: Array = qpos[:, HAND]  # [n, 4] x, y, z, yaw; z is the height of the fingertips
        self.fingers: Array = qpos[:, FINGERS]  # [n, 2]
        self.command: Array = batch.bind("ctrl")[ids]  # [n, 6] commanded hand pose and finger openings
        self.objects: Array = qpos[:, scene.positions]  # [n, O, 3] centres
        self.quaternions: Array = qpos[:, scene.quaternions]  # [n, O, 4] w, x, y, z
        self.bases: Array = batch.bind("mocap_pos")[ids]  # [n, M, 3]
        self.joints: Array = qpos[:, scene.joints]  # [n, J]
        self.presses, self.pressed = presses, pressed
        self._batch, self._ids = batch, ids

    @functools.cached_property
    def gaps(self) -> Array:
        """Gap between each object and the left and right finger, [n, O, 2]; negative: pressed together, at most 0.05.

        Measured by MuJoCo's collision geometry in the batch's state at the first call, so call it before the next step.
        """
        sensors = self._batch.bind("sensordata")  # before the call: only bound outputs are copied out of it
        flags = self._batch.expand("opt.disableflags")
        flags[self._ids] = 0
        with quiet():
            self._batch.forward(self._ids, stage=mujoco.mjtStage.mjSTAGE_POS)
        flags[self._ids] = SENSORS_OFF
        return sensors[self._ids].reshape(-1, len(self.scene.objects), 2)

    def origin(self, mark: Mark) -> Array:
        """What `mark`'s offset is from, [n, 3]: the fixture's base, moved by a slide. (Hinges: see `place`.)"""
        base = self.bases[:, mark.root]
        if mark.joint < 0 or mark.anchor is not None:
            return base
        return base + self.joints[:, mark.joint, None] * mark.axis

    def place(self, mark: Mark) -> Array:
        """Centre of a mark, [n, 3]."""
        if mark.anchor is None:
            return self.origin(mark) + mark.offset
        angle, arm = self.joints[:, mark.joint, None], mark.offset - mark.anchor  # Rodrigues' rotation formula
        turned = arm * np.cos(angle) + np.cross(mark.axis, arm) * np.sin(angle)
        return self.origin(mark) + mark.anchor + turned + mark.axis * (mark.axis @ arm) * (1 - np.cos(angle))

    def position(self, thing: str) -> Array:
        """Reference point of any entity, [n, 3]: a centre, or the middle between the fingertips."""
        if thing == GRIPPER:
            return self.hand[:, :3]
        if thing in self.scene.objects:
            return self.objects[:, self.scene.objects.index(thing)]
        return self.place(self.scene.marks[thing])

    def share(self, thing: str) -> Array:
        """Position of an entity's joint as a share of fully open, [n]."""
        return self.joint(thing) / self.scene.setting.moving[thing].full

    def joint(self, thing: str) -> Array:
        """Position of an entity's joint, [n], m or rad."""
        return self.joints[:, self.scene.moving.index(thing)]

    def outside(self, container: str, positions: Array) -> Array:
        """How far positions [n, ..., 3] lie outside a container's interior: the largest overshoot along any axis."""
        mark = self.scene.marks[f"{container}_interior"]
        origin = self.origin(mark)
        relative = positions - (origin if positions.ndim == 2 else origin[:, None])
        return np.maximum(mark.offset - mark.half - relative, relative - (mark.offset + mark.half)).max(-1)

    def upright(self, o: int) -> Array:
        """Cosine of the tilt of object `o`'s axis, [n]."""
        x, y = self.quaternions[:, o, 1], self.quaternions[:, o, 2]
        return 1 - 2 * (x * x + y * y)

    def yaw(self, o: int) -> Array:
        """Angle of object `o`'s x axis about the vertical, [n]."""
        w, x, y, z = self.quaternions[:, o].T
        return np.arctan2(2 * (x * y + w * z), 1 - 2 * (y * y + z * z))

    def lowest(self, o: int) -> Array:
        """Height of object `o`'s lowest point above the table, [n]."""
        z, half = self.objects[:, o, 2], self.scene.half_size[o]
        if self.scene.shapes[o] == SPHERE:
            return z - half[0]
        cosine = np.abs(self.upright(o))
        if self.scene.shapes[o] == CYLINDER:
            return z - half[2] * cosine - half[0] * np.sqrt(np.maximum(0.0, 1 - cosine * cosine))
        w, x, y, v = self.quaternions[:, o].T
        return z - half[0] * np.abs(2 * (x * v - w * y)) - half[1] * np.abs(2 * (y * v + w * x)) - half[2] * cosine
