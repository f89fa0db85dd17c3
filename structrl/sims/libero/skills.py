"""Feedback skills of a scripted Franka on LIBERO's true state: moving, picking, putting. Torch-free.

A skill is a generator: it yields the action of the next control step, float [7] (OSC_POSE: position, rotation vector,
gripper), and looks at the state again when it is resumed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from structrl.sims.libero.heights import HAND, OPENINGS, PALM, HeightMap, find_grasps, look_down
from structrl.sims.libero.world import Array, Body, World

Steps = Iterator[Array]
OPEN, CLOSE, KEEP = -1.0, 1.0, 0.0
STEP_M, STEP_RAD = 0.05, 0.5  # what an action of 1 asks for, robosuite's OSC_POSE
GAIN = 3.0  # of the remaining way: the controller covers about a third of what is asked for in a control step


class UnableError(Exception):
    """The skill cannot be carried out from here."""


@dataclass(frozen=True)
class Held:
    """An object in the hand: how far its underside was below its origin when it stood (m), its footprint's long axis
    (rad, in the world) and length to width then, and the hand's yaw."""

    name: str
    bottom: float
    axis: float
    aspect: float
    yaw: float


class Robot:
    """One LIBERO environment, as the skills see it; `world.use(body)` must be in force when a skill is resumed.

    Args:
        world: the task's model.
        body: the environment.
        slop: spread of grasps, m.
        rng: draws it.
    """

    def __init__(self, world: World, body: Body, slop: float, rng: np.random.Generator):
        self.env, self.model, self.data = world.env, world.model, body.data
        self.slop, self.rng = slop, rng
        self.arm = self.env.robots[0]
        bodies = [b for b in range(self.model.nbody) if self.model.body(b).name.startswith(("robot0", "gripper0"))]
        self.own = frozenset(int(self.model.body_rootid[b]) for b in bodies)
        self.held: Held | None = None

    # What there is

    @property
    def position(self) -> Array:
        """Of the grip site, m."""
        return self.data.site_xpos[self.arm.eef_site_id].copy()

    @property
    def pose(self) -> Array:
        """Rotation matrix of the grip site; its columns are the closing axis, across, and forward."""
        return self.data.site_xmat[self.arm.eef_site_id].reshape(3, 3).copy()

    @property
    def yaw(self) -> float:
        """Direction of the closing axis seen from above."""
        return float(np.arctan2(self.pose[1, 0], self.pose[0, 0]))

    @property
    def opening(self) -> float:
        """Between the finger pads, m."""
        return float(np.abs(self.data.qpos[self.arm._ref_gripper_joint_pos_indexes]).sum())

    def body(self, name: str) -> int:
        """Body of an object or fixture."""
        return int(self.env.obj_body_id[name])

    def where(self, name: str) -> Array:
        """Origin of an object, fixture or region."""
        if name in self.env.object_sites_dict:
            return self.data.site(name).xpos.copy()
        return self.data.xpos[self.body(name)].copy()

    def grasps(self, name: str) -> bool:
        """robosuite's own grasp check."""
        return bool(self.env._check_grasp(self.arm.gripper, self.env.get_object(name)))

    def look(self, center: Array, half: float, step: float, without: str | None = None) -> HeightMap:
        """Height map without the robot, and without an object: what it hides is seen."""
        hidden = self.own if without is None else self.own | {self.body(without)}
        return look_down(self.model, self.data, center, half, step, hidden)

    # Motion

    def action(self, position: Array, pose: Array, grip: float) -> Array:
        """One control step towards a pose of the grip site."""
        move = GAIN * (position - self.position) / STEP_M
        move /= max(float(np.abs(move).max()), 1.0)  # a straight line
        turn = 2 * rotation_vector(pose @ self.pose.T) / STEP_RAD
        return np.concatenate([move, turn / max(float(np.abs(turn).max()), 1.0), [grip]])

    def go(self, position: Array, pose: Array, grip: float, near: float = 0.005, patience: int = 80) -> Steps:
        """Move to a pose; gives up quietly when it gets no closer."""
        best, waited = np.inf, 0
        for _ in range(patience):
            turn = float(np.linalg.norm(rotation_vector(pose @ self.pose.T)))
            away = float(np.linalg.norm(position - self.position)) + 0.05 * turn
            waited = 0 if away < best - 0.001 else waited + 1
            best = min(best, away)
            if away < near or waited > 12:
                return
            yield self.action(position, pose, grip)

    def stay(self, steps: int, grip: float) -> Steps:
        """Hold still."""
        position, pose = self.position, self.pose
        for _ in range(steps):
            yield self.action(position, pose, grip)

    def rise(self, height: float, grip: float) -> Steps:
        """Straight up."""
        yield from self.go(self.position + np.array([0, 0, height]), self.pose, grip, near=0.02)

    def travel(self, goal: Array, pose: Array, grip: float, below: float = 0.0) -> Steps:
        """Over everything that is in the way, then straight down to `goal`; `below` hangs below the grip site."""
        here = self.position
        span = float(np.abs((here - goal)[:2]).max()) / 2 + 0.12
        seen = self.look((here + goal) / 2, span, 0.02, self.held.name if self.held else None)
        way = goal[:2] - here[:2]
        part = np.clip(((seen.points - here[:2]) @ way) / max(float(way @ way), 1e-9), 0, 1)
        close = np.linalg.norm(seen.points - (here[:2] + part[..., None] * way), axis=-1) < 0.09
        high = max(float(seen.height[close].max()) + below + 0.04, goal[2] + 0.02)
        if here[2] < high - 0.01 and np.linalg.norm(way) > 0.02:
            yield from self.go(np.array([*here[:2], high]), self.pose, grip, near=0.03)
        yield from self.go(np.array([*goal[:2], high]), pose, grip, near=0.012)
        yield from self.go(goal, pose, grip)

    def open_hand(self) -> Steps:
        """Open all the way."""
        if self.opening < 0.07:
            yield from self.stay(8, OPEN)

    def open_to(self, width: float) -> Steps:
        """From open, close to about `width` between the pads."""
        if width < OPENINGS[0]:
            yield from self.stay(round((0.08 - width) / 0.010), CLOSE)  # 1 cm a step
            yield from self.stay(4, KEEP)

    # Skills

    def pick(self, name: str) -> Steps:
        """Take an object from above; `held` says whether it worked.

        Raises:
            UnableError: it cannot be reached.
        """
        self.held = None
        yield from self.open_hand()
        origin, body = self.where(name), self.body(name)
        seen = self.look(origin, 0.15, 0.003)
        mine = seen.body == body
        if not mine.any():
            raise UnableError(f"{name} cannot be seen from above")
        points = seen.points[mine]
        floor = self.look(origin, 0.15, 0.01, name).under(points)
        grasps = find_grasps(seen, body, (points.min(0) + points.max(0)) / 2, floor, self.yaw)
        if not grasps:
            raise UnableError(f"no grasp of {name} from above")
        best = grasps[0]
        pose = upright(best.yaw)
        goal = best.position + np.array([*self.rng.normal(0, self.slop, 2), 0.0])
        above = goal + np.array([0, 0, max(0.05, float(seen.height[mine].max() - goal[2]) + 0.03)])
        yield from self.travel(above, pose, OPEN)
        yield from self.open_to(best.opening)
        yield from self.go(goal, pose, KEEP if best.opening < OPENINGS[0] else OPEN)
        yield from self.close_hand(name)
        if self.grasps(name):
            axis, aspect = footprint(points)
            self.held = Held(name, float(origin[2]) - floor, axis, aspect, self.yaw)
            yield from self.rise(0.06, CLOSE)
        if not self.grasps(name):
            self.held = None

    def close_hand(self, name: str) -> Steps:
        """Close until the object is held for some steps."""
        position, pose = self.position, self.pose
        firm = 0
        for _ in range(25):
            firm = firm + 1 if self.grasps(name) else 0
            if firm > 6:
                return
            yield self.action(position, pose, CLOSE)

    def put(self, name: str, target: str, share: float = 0.0) -> Steps:
        """Bring the held object over `target`, down, and let go.

        Args:
            name: the object.
            target: where.
            share: 0 is the middle of a region, -1 and 1 its near and far end; for things that share it.
        """
        held = self.held
        assert held is not None and held.name == name
        point = self.where(target)
        if share:
            point[0] += share * self._size(target)[0]
        seen = self.look(point, 0.16, 0.005, name)
        support = seen.highest(point[:2], 0.02, 0.02)
        yaw = self.yaw + self._turn(held, target)
        for _ in range(2):  # the object may turn in the hand on the way
            offset = self.where(name) - self.position
            offset[:2] = rotate(offset[:2], yaw - self.yaw)
            at = point[:2] - offset[:2]
            floor = support + held.bottom + 0.008 - offset[2]
            palm = seen.highest(at, *HAND, yaw) - PALM + 0.010
            goal = np.array([*at, max(floor, palm)])
            if np.linalg.norm(goal[:2] - self.position[:2]) < 0.004:
                break
            yield from self.travel(
                goal + np.array([0, 0, 0.04]), upright(yaw), CLOSE, max(held.bottom - offset[2], 0.03)
            )
            if not self.grasps(name):
                self.held = None
                return
            yaw = self.yaw
        yield from self.go(goal, upright(yaw), CLOSE)
        yield from self.release()

    def _size(self, target: str) -> Array:
        """Half extents of a region along x and y; 0 of what is none."""
        region = self.env.object_sites_dict.get(target)
        if region is None:
            return np.zeros(2)
        return np.abs(self.data.site(target).xmat.reshape(3, 3) @ region.size)[:2]

    def _turn(self, held: Held, target: str) -> float:
        """How to turn an object that is long so that it lies along a region that is long."""
        size = self._size(target)
        if held.aspect < 1.5 or size.max() <= 1.5 * size.min():
            return 0.0
        along = 0.0 if size[0] > size[1] else np.pi / 2
        return nearest(along - (held.axis + self.yaw - held.yaw))

    def release(self) -> Steps:
        """Open the hand and leave upwards."""
        self.held = None
        yield from self.stay(8, OPEN)
        yield from self.rise(0.12, OPEN)

    def drag(self, name: str, target: str) -> Steps:
        """Press the closed hand into a dish and draw it to `target`."""
        start, goal = self.where(name), self.where(target)
        seen = self.look(start, 0.1, 0.005)
        bottom = seen.highest(start[:2], 0.02, 0.02)
        pose = upright(self.yaw)
        yield from self.stay(10, CLOSE)
        yield from self.travel(np.array([*start[:2], bottom + 0.02]), pose, CLOSE)
        for _ in range(100):
            rest = goal[:2] - self.where(name)[:2]
            if np.linalg.norm(rest) < 0.01:
                break
            if np.linalg.norm(self.position[:2] - self.where(name)[:2]) > 0.09:
                break  # slipped over the rim
            step = rest * min(1.0, 0.025 / float(np.linalg.norm(rest)))
            yield self.action(np.array([*(self.position[:2] + step), bottom - 0.005]), pose, CLOSE)
        yield from self.rise(0.1, CLOSE)


def footprint(points: Array) -> tuple[float, float]:
    """Direction of the long axis of points [n, 2], and length to width."""
    values, vectors = np.linalg.eigh(np.cov(points.T))
    return float(np.arctan2(vectors[1, 1], vectors[0, 1])), float(np.sqrt(values[1] / max(values[0], 1e-9)))


def nearest(angle: float) -> float:
    """The same direction of an axis, within a quarter turn of 0."""
    return (angle + np.pi / 2) % np.pi - np.pi / 2


def rotate(vector: NDArray[np.float64], angle: float) -> Array:
    """A vector of the plane, turned."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([c * vector[0] - s * vector[1], s * vector[0] + c * vector[1]])


def upright(yaw: float) -> Array:
    """Pose of a hand that points down, its closing axis along `yaw`."""
    return pointing(np.array([0.0, 0.0, -1.0]), np.array([np.cos(yaw), np.sin(yaw), 0.0]))


def pointing(forward: Array, closing: Array) -> Array:
    """Pose of a hand that points `forward` and closes along `closing`; unit vectors, square to each other."""
    return np.stack([closing, np.cross(forward, closing), forward], axis=1)


def rotation_vector(matrix: Array) -> Array:
    """Axis times angle of a rotation matrix; 0 for half a turn, which no skill asks for."""
    angle = np.arccos(np.clip((np.trace(matrix) - 1) / 2, -1.0, 1.0))
    skew = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]])
    size = float(np.linalg.norm(skew))
    return skew / size * angle if size > 1e-9 else np.zeros(3)
