"""Feedback skills of a scripted Franka on LIBERO's true state. Torch-free, runs beside LIBERO.

A skill is a generator: it yields the action of the next control step, float [7] (OSC_POSE: position, rotation vector,
gripper), and looks at the state again when it is resumed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.sims.libero.heights import HAND, OPENINGS, PALM, Grasp, HeightMap, find_grasps, look_down

Steps = Iterator[NDArray[np.float64]]
OPEN, CLOSE, KEEP = -1.0, 1.0, 0.0
STEP_M, STEP_RAD = 0.05, 0.5  # what an action of 1 asks for, robosuite's OSC_POSE
GAIN = 3.0  # of the remaining way per control step: the controller gets about a third of it
DOWN = np.diag([1.0, -1.0, -1.0])


class Unable(Exception):
    """The skill cannot be carried out from here."""


@dataclass
class Held:
    """An object in the hand."""

    name: str
    bottom: float  # its underside below its origin when it stood, m
    grasp: Grasp


class Robot:
    """One LIBERO environment, as the skills see it.

    Args:
        env: the robosuite environment (`BDDLBaseDomain`).
        slop: spread of grasps, m.
        rng: draws the slop.
    """

    def __init__(self, env: Any, slop: float, rng: np.random.Generator):
        self.env, self.slop, self.rng = env, slop, rng
        self.model, self.data = env.sim.model._model, env.sim.data._data
        self.site = env.robots[0].eef_site_id
        self.robot_bodies = frozenset(
            int(self.model.body_rootid[b])
            for b in range(self.model.nbody)
            if self.model.body(b).name.startswith(("robot0", "gripper0", "mount0"))
        )
        self.held: Held | None = None
        self.home = self.position

    # What there is

    @property
    def position(self) -> NDArray[np.float64]:
        """Of the grip site, m."""
        return self.data.site_xpos[self.site].copy()

    @property
    def pose(self) -> NDArray[np.float64]:
        """Rotation matrix of the grip site: columns closing axis, across, forward."""
        return self.data.site_xmat[self.site].reshape(3, 3).copy()

    @property
    def yaw(self) -> float:
        """Direction of the closing axis seen from above."""
        return float(np.arctan2(self.pose[1, 0], self.pose[0, 0]))

    def body(self, name: str) -> int:
        """Body of an object or fixture."""
        return int(self.env.obj_body_id[name])

    def where(self, name: str) -> NDArray[np.float64]:
        """Origin of an object, fixture or region."""
        if name in self.env.object_sites_dict:
            return self.data.site(name).xpos.copy()
        return self.data.xpos[self.body(name)].copy()

    def holds(self, *state: str) -> bool:
        """LIBERO's own predicate."""
        return bool(self.env._eval_predicate(list(state)))

    def grasps(self, name: str) -> bool:
        """robosuite's own grasp check."""
        return bool(self.env._check_grasp(self.env.robots[0].gripper, self.env.objects_dict[name]))

    def look(self, center: NDArray[np.float64], half: float, step: float, without: str | None = None) -> HeightMap:
        """Height map without the robot, and without an object (what it hides is seen)."""
        ignore = self.robot_bodies
        if without is not None:
            ignore = ignore | {int(self.model.body_rootid[self.body(without)])}
        return look_down(self.model, self.data, center, half, step, ignore)

    # Motion

    def action(self, position: NDArray[np.float64], pose: NDArray[np.float64], grip: float) -> NDArray[np.float64]:
        """One control step towards a pose of the grip site."""
        turn = rotation_vector(pose @ self.pose.T)
        move = GAIN * (position - self.position) / STEP_M
        biggest = np.abs(move).max()
        move = move / max(biggest, 1.0)  # a straight line
        return np.concatenate([move, np.clip(2 * turn / STEP_RAD, -1, 1), [grip]])

    def go(
        self,
        position: NDArray[np.float64],
        pose: NDArray[np.float64],
        grip: float,
        near: float = 0.005,
        patience: int = 80,
    ) -> Steps:
        """Move to a pose; gives up quietly when it stops getting closer."""
        best, waited = np.inf, 0
        for _ in range(patience):
            away = float(np.linalg.norm(position - self.position)) + 0.05 * float(
                np.linalg.norm(rotation_vector(pose @ self.pose.T))
            )
            if away < near:
                return
            waited = 0 if away < best - 0.001 else waited + 1
            best = min(best, away)
            if waited > 12:
                return
            yield self.action(position, pose, grip)

    def stay(self, steps: int, grip: float) -> Steps:
        """Hold still."""
        position, pose = self.position, self.pose
        for _ in range(steps):
            yield self.action(position, pose, grip)

    def travel(self, goal: NDArray[np.float64], yaw: float, grip: float, below: float = 0.0) -> Steps:
        """Over everything in the way to a point above `goal`, then straight down to it."""
        pose = upright(yaw)
        here = self.position
        without = self.held.name if self.held else None
        middle = np.array([*(here + goal)[:2] / 2, goal[2]])
        span = float(np.abs((here - goal)[:2]).max()) / 2 + 0.12
        seen = self.look(middle, span, 0.02, without)
        way = goal[:2] - here[:2]
        part = np.clip(((seen.points - here[:2]) @ way) / max(float(way @ way), 1e-9), 0, 1)
        close = np.linalg.norm(seen.points - (here[:2] + part[..., None] * way), axis=-1) < 0.09
        clear = float(seen.height[close].max()) + below + 0.04
        high = max(clear, goal[2] + 0.02)
        if here[2] < high - 0.01 and np.linalg.norm(way) > 0.02:
            yield from self.go(np.array([here[0], here[1], high]), self.pose, grip, near=0.03)
        yield from self.go(np.array([goal[0], goal[1], max(high, goal[2])]), pose, grip, near=0.012)
        yield from self.go(goal, pose, grip)

    # Skills

    def pick(self, name: str, yaws: NDArray[np.float64] | None = None) -> Steps:
        """Take an object from above.

        Raises:
            Unable: no grasp was found.
        """
        self.held = None
        yield from self.open_hand()
        origin = self.where(name)
        root = int(self.model.body_rootid[self.body(name)])
        seen = self.look(origin, 0.15, 0.003)
        mine = seen.body == root
        if not mine.any():
            raise Unable(f"{name} cannot be seen from above")
        floor = self.look(origin, 0.15, 0.01, name).under(seen.points[mine])
        grasps = find_grasps(seen, root, middle_of(seen, mine), floor, self.yaw, yaws)
        if not grasps:
            raise Unable(f"no grasp of {name} from above")
        best = grasps[0]
        goal = best.position + np.array([*self.rng.normal(0, self.slop, 2), 0.0])
        above = goal + np.array([0, 0, max(0.05, float(seen.height[mine].max() - goal[2]) + 0.03)])
        yield from self.travel(above, best.yaw, OPEN)
        yield from self.open_to(best.opening)
        yield from self.go(goal, upright(best.yaw), KEEP if best.opening < OPENINGS[0] else OPEN)
        yield from self.close_hand(name)
        if self.grasps(name):
            self.held = Held(name, float(origin[2]) - floor, best)
            yield from self.go(self.position + np.array([0, 0, 0.06]), upright(best.yaw), CLOSE, near=0.02)
        if not self.grasps(name):
            self.held = None

    @property
    def opening(self) -> float:
        """Between the finger pads, m."""
        fingers = self.data.qpos[self.env.robots[0]._ref_gripper_joint_pos_indexes]
        return float(np.abs(fingers).sum())

    def open_hand(self) -> Steps:
        """Open all the way."""
        if self.opening < 0.07:
            yield from self.stay(8, OPEN)

    def open_to(self, width: float) -> Steps:
        """From open, close to about `width` between the pads."""
        if width >= OPENINGS[0]:
            return
        for _ in range(round((0.08 - width) / 0.010)):  # 1 cm a step
            yield from self.stay(1, CLOSE)
        yield from self.stay(4, KEEP)

    def close_hand(self, name: str) -> Steps:
        """Close until the object is held for some steps, or nothing moves."""
        position, pose = self.position, self.pose
        firm = 0
        for _ in range(25):
            firm = firm + 1 if self.grasps(name) else 0
            if firm > 6:
                return
            yield self.action(position, pose, CLOSE)

    def put(self, done: tuple[str, ...], name: str, target: str, spot: NDArray[np.float64] | None = None) -> Steps:
        """Bring the held object over the middle of `target`, down, and let go."""
        assert self.held is not None and self.held.name == name
        point = self.where(target) if spot is None else spot
        seen = self.look(point, 0.16, 0.005, name)
        support = seen.highest(point[:2], 0.02, 0.02)
        for _ in range(2):  # what is held may turn on the way
            offset = self.where(name) - self.position
            yaw = self.yaw
            floor = support + self.held.bottom + 0.008 - offset[2]
            palm = seen.highest(point[:2] - offset[:2], *HAND, yaw) - PALM + 0.010
            goal = np.array([*(point[:2] - offset[:2]), max(floor, palm)])
            if np.linalg.norm(goal[:2] - self.position[:2]) < 0.004:
                break
            hang = max(self.held.bottom - offset[2], 0.03)
            yield from self.travel(goal + np.array([0, 0, 0.04]), yaw, CLOSE, hang)
            if not self.grasps(name):
                self.held = None
                return
        yield from self.go(goal, upright(self.yaw), CLOSE)
        yield from self.release(done)

    def release(self, done: tuple[str, ...]) -> Steps:
        """Open the hand and leave upwards."""
        self.held = None
        yield from self.stay(8, OPEN)
        yield from self.go(self.position + np.array([0, 0, 0.12]), self.pose, OPEN, near=0.02)
        for _ in range(10):
            if self.holds(*done):
                return
            yield from self.stay(1, OPEN)


def middle_of(seen: HeightMap, mine: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Middle of the cells of an object, x and y."""
    points = seen.points[mine]
    return (points.min(0) + points.max(0)) / 2


def upright(yaw: float) -> NDArray[np.float64]:
    """Pose of a hand that points down with its closing axis along `yaw`."""
    c, s = np.cos(yaw), np.sin(yaw)
    return np.array([[c, s, 0.0], [s, -c, 0.0], [0.0, 0.0, -1.0]])


def rotation_vector(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Axis times angle of a rotation matrix."""
    angle = np.arccos(np.clip((np.trace(matrix) - 1) / 2, -1.0, 1.0))
    skew = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]])
    size = np.linalg.norm(skew)
    if size < 1e-9:
        return np.zeros(3)  # no turn, or half a turn, for which no skill asks
    return skew / size * angle
