"""Scene "lunch": names, places in MuJoCo's state, random layouts, and a named view of the batch's physics.

Shapes: n environments asked for, O objects, all float64, metres and radians, world frame (z up, table at z = 0).
"""

import contextlib
import functools
from collections.abc import Iterator
from importlib.resources import files

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from structrl.seeding import generator
from structrl.sims.base import Ids

Array = NDArray[np.float64]

OBJECTS = ("apple_1", "drink_1")
BOX, TABLE, GRIPPER = "box_1", "table_1", "gripper_1"
HALF_SIZE = np.array([[0.028, 0.028, 0.028], [0.024, 0.024, 0.035]])  # O x 3, as in lunch.xml
BOX_HALF_SIZE = np.array([0.098, 0.098, 0.043])
INTERIOR = np.array(
    [[-0.09, -0.09, 0.0], [0.09, 0.09, 0.075]]
)  # where an object's centre is inside, from the box's base
LID_OPEN = 1.94  # rests on the joint limit just past upright

TIMESTEP, SUBSTEPS = 0.01, 5
CONTROL_HZ = 1 / (TIMESTEP * SUBSTEPS)
SETTLE = 20  # substeps after which a fresh layout is at rest (checked in the tests)

# Columns of qpos. The hand's four joints come first and its body starts at the origin, so qpos is its pose.
HAND = slice(0, 4)  # x, y, z, yaw
FINGERS = slice(4, 6)  # opening of each, 0 .. 0.045
OBJECT_POSITIONS = np.array([[6, 7, 8], [13, 14, 15]])
OBJECT_QUATERNIONS = np.array([[9, 10, 11, 12], [16, 17, 18, 19]])
LID = 20
HAND_RANGE = np.array([[-0.36, -0.32, 0.008, -1.7], [0.46, 0.32, 0.34, 1.7]])
FINGER_OPEN = 0.045
SENSORS_OFF = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)


def load_model() -> mujoco.MjModel:
    """The compiled scene. Sensors are switched off: only `View.gaps` wants them, and they cost 8 % of a step."""
    return mujoco.MjModel.from_xml_string((files("structrl.sims.tabletop") / "lunch.xml").read_text("utf-8"))


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


class Layout:
    """A random start: positions of hand, objects and box, a pure function of the seed counters."""

    def __init__(self, seed: tuple[int, ...]):
        rng = generator(*seed)
        self.box = np.array([rng.uniform(0.13, 0.18), rng.uniform(-0.06, 0.04), 0.0])
        self.hand = rng.uniform([-0.15, -0.10, 0.17, -0.3], [0.0, 0.10, 0.25, 0.3])
        self.objects = np.empty((len(OBJECTS), 3))
        self.objects[:, 2] = HALF_SIZE[:, 2]
        # The open fingers reach 57 mm sideways; closer neighbours would be knocked over by an innocent grasp.
        while True:
            self.objects[:, :2] = rng.uniform([-0.27, -0.22], [-0.04, 0.16], (len(OBJECTS), 2))
            if np.hypot(*(self.objects[0, :2] - self.objects[1, :2])) >= 0.115:
                break


class View:
    """True physical quantities of environments `ids`, by name (a copy, taken when constructed)."""

    def __init__(self, batch: Batch, ids: Ids):
        qpos = batch.bind("qpos")[ids]
        self.hand: Array = qpos[:, HAND]  # [n, 4] x, y, z, yaw; z is the height of the fingertips
        self.fingers: Array = qpos[:, FINGERS]  # [n, 2]
        self.command: Array = batch.bind("ctrl")[ids]  # [n, 6] commanded hand pose and finger openings
        self.objects: Array = qpos[:, OBJECT_POSITIONS]  # [n, O, 3] centres
        self.quaternions: Array = qpos[:, OBJECT_QUATERNIONS]  # [n, O, 4] w, x, y, z
        self.box: Array = batch.bind("mocap_pos")[ids, 0]  # [n, 3] centre of the base
        self.lid: Array = qpos[:, LID]  # [n] angle, 0 = closed
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
        return sensors[self._ids].reshape(-1, len(OBJECTS), 2)

    def upright(self, o: int) -> Array:
        """Cosine of the tilt of object `o`'s axis, [n]."""
        x, y = self.quaternions[:, o, 1], self.quaternions[:, o, 2]
        return 1 - 2 * (x * x + y * y)

    def lowest(self, o: int) -> Array:
        """Height of object `o`'s lowest point above the table, [n]."""
        z = self.objects[:, o, 2]
        radius, half_height = HALF_SIZE[o, 0], HALF_SIZE[o, 2]
        if OBJECTS[o] == "apple_1":  # sphere
            return z - radius
        cosine = np.abs(self.upright(o))
        return z - half_height * cosine - radius * np.sqrt(np.maximum(0.0, 1 - cosine * cosine))


def outside_box(relative: Array) -> Array:
    """How far positions relative to the box [..., 3] lie outside its interior: the largest overshoot along any axis."""
    return np.maximum(INTERIOR[0] - relative, relative - INTERIOR[1]).max(-1)
