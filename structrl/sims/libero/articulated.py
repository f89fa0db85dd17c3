"""Skills for drawers, doors and knobs. Torch-free."""

import numpy as np

from structrl.sims.libero.heights import OPENINGS, find_grasps
from structrl.sims.libero.skills import CLOSE, KEEP, OPEN, Robot, Steps, UnableError, pointing, rotate, upright
from structrl.sims.libero.world import Array

DOWN = np.array([0.0, 0.0, -1.0])
HINGE, SLIDE = 3, 2  # mujoco.mjtJoint


class Joint:
    """The joint of a drawer, door or knob.

    Attributes:
        opening: sign of the joint's motion when it is opened or turned on.
    """

    def __init__(self, robot: Robot, name: str):
        env, model = robot.env, robot.model
        region = env.object_sites_dict.get(name)
        owner = env.get_object(name if region is None else region.parent_name)
        names = owner.joints if region is None else region.joints
        if not names:
            raise UnableError(f"{name} has no joint")
        self.robot, self.id = robot, model.joint(names[0]).id
        self.body = int(model.jnt_bodyid[self.id])
        self.kind = int(model.jnt_type[self.id])
        articulation = owner.object_properties["articulation"]
        ranges = articulation.get("default_open_ranges") or articulation.get("default_turnon_ranges")
        self.opening = float(np.sign(np.mean(ranges)))

    @property
    def value(self) -> float:
        """m or rad."""
        return float(self.robot.data.qpos[self.robot.model.jnt_qposadr[self.id]])

    @property
    def axis(self) -> Array:
        """In the world, so that motion along or about it opens."""
        return self.opening * self.robot.data.xaxis[self.id]

    @property
    def anchor(self) -> Array:
        """A point of the axis, in the world."""
        return self.robot.data.xanchor[self.id].copy()

    def corners(self) -> Array:
        """Corners of the boxes that make up the moving part, [geoms, 8, 3]."""
        model, data = self.robot.model, self.robot.data
        collides = (model.geom_contype | model.geom_conaffinity) > 0  # the microwave's parts have only the second
        geoms = np.flatnonzero((model.geom_bodyid == self.body) & collides)
        if not len(geoms):
            raise UnableError("its moving part has nothing that can be touched")
        signs = np.stack(np.meshgrid(*[[-1, 1]] * 3, indexing="ij"), -1).reshape(8, 3)
        return np.stack(
            [data.geom_xpos[g] + (signs * model.geom_size[g]) @ data.geom_xmat[g].reshape(3, 3).T for g in geoms]
        )


def turn(robot: Robot, name: str, on: bool) -> Steps:
    """Turn a knob: take it from above and turn the wrist."""
    joint = Joint(robot, name)
    yield from robot.open_hand()
    seen = robot.look(joint.anchor, 0.14, 0.002)
    mine = seen.body == joint.body
    if not mine.any():
        raise UnableError(f"the knob of {name} cannot be seen from above")
    points = seen.points[mine]
    floor = float(seen.height[mine].min())
    grasps = find_grasps(seen, joint.body, (points.min(0) + points.max(0)) / 2, floor, robot.yaw)
    if not grasps:
        raise UnableError(f"no grasp of the knob of {name}")
    best = grasps[0]
    pose = upright(best.yaw)
    yield from robot.travel(best.position + np.array([0, 0, 0.05]), pose, OPEN)
    yield from robot.open_to(best.opening)
    yield from robot.go(best.position, pose, KEEP if best.opening < OPENINGS[0] else OPEN)
    yield from robot.stay(10, CLOSE)
    yaw, way = robot.yaw, (1 if on else -1) * float(joint.axis[2])
    at, reached = robot.position, joint.value
    for _ in range(60):
        if abs(joint.value - reached) > 0.8:
            break
        moved = robot.yaw - yaw
        step = way * 0.25
        middle = joint.anchor[:2] + rotate(at[:2] - joint.anchor[:2], moved + step)
        yield robot.action(np.array([*middle, at[2]]), upright(robot.yaw + step), CLOSE)
        if abs(moved) > 1.2:
            break
    yield from robot.release()


def slide(robot: Robot, name: str, out: bool) -> Steps:
    """Pull a drawer open by its handle, or push it shut."""
    joint = Joint(robot, name)
    if joint.kind != SLIDE:
        raise UnableError(f"{name} does not slide")
    away = joint.axis / np.linalg.norm(joint.axis)
    corners = joint.corners()
    handle = corners[(corners @ away).mean(1).argmax()]
    middle, front = handle.mean(0), float((handle @ away).max())
    bar = np.cross(away, DOWN)
    if out:
        tilt = np.deg2rad(70)
        forward = np.cos(tilt) * DOWN - np.sin(tilt) * away
        closing = np.cos(tilt) * away + np.sin(tilt) * DOWN
        pose = nearer(robot, forward, closing)
        yield from robot.open_hand()
        yield from robot.travel(middle + 0.10 * away + np.array([0, 0, 0.03]), pose, OPEN)
        yield from robot.go(middle, pose, OPEN)
        yield from robot.stay(12, CLOSE)
        yield from robot.go(middle + 0.20 * away, pose, CLOSE)
        yield from robot.stay(6, OPEN)
        yield from robot.go(robot.position + 0.06 * away, pose, OPEN, near=0.02)
        yield from robot.rise(0.15, OPEN)
        return
    tilt = np.deg2rad(25)
    pose = nearer(robot, np.cos(tilt) * DOWN - np.sin(tilt) * away, bar)
    start = middle + (front - middle @ away + 0.05) * away
    yield from robot.stay(8, CLOSE)
    yield from robot.travel(start, pose, CLOSE)
    for _ in range(80):
        if joint.value * joint.opening < -0.003:  # past its stop, as LIBERO asks
            break
        goal = robot.position - 0.03 * away
        goal += bar * float((middle - goal) @ bar)
        yield robot.action(np.array([*goal[:2], start[2]]), pose, CLOSE)
    yield from robot.go(robot.position + 0.06 * away, pose, CLOSE, near=0.02)
    yield from robot.rise(0.1, CLOSE)


def swing_shut(robot: Robot, name: str) -> Steps:
    """Push a door shut by its far edge."""
    joint = Joint(robot, name)
    if joint.kind != HINGE:
        raise UnableError(f"{name} does not swing")
    anchor = joint.anchor
    corners = joint.corners().reshape(-1, 3)
    arms = corners - anchor
    far = float(np.linalg.norm(arms[:, :2], axis=1).max())
    height = float(corners[:, 2].min() * 0.4 + corners[:, 2].max() * 0.6)

    def edge(ahead: float, off: float) -> tuple[Array, Array]:
        """A point of the door near its edge once it has closed by `ahead`, `off` outside of it; which way it closes."""
        tips = joint.corners().reshape(-1, 3) - anchor
        radial = np.append(tips[np.linalg.norm(tips[:, :2], axis=1).argmax(), :2], 0.0)
        radial /= np.linalg.norm(radial)
        shut = np.cross(-joint.axis, radial)
        outside = float((tips @ shut).min())
        angle = -ahead * float(joint.axis[2])
        spot = 0.85 * far * radial + (outside - off) * shut
        return np.array([*(anchor[:2] + rotate(spot[:2], angle)), height]), shut

    start, shut = edge(0.0, 0.05)
    closing = np.cross(shut, DOWN)
    yield from robot.stay(8, CLOSE)
    yield from robot.travel(start, nearer(robot, DOWN, closing), CLOSE)
    for _ in range(150):
        if joint.value * joint.opening < 0.004:
            break
        goal, shut = edge(0.25, 0.0)
        yield robot.action(goal, robot.pose, CLOSE)
    yield from robot.go(robot.position - 0.06 * shut, robot.pose, CLOSE, near=0.02)
    yield from robot.rise(0.1, CLOSE)


def nearer(robot: Robot, forward: Array, closing: Array) -> Array:
    """The one of the two equal poses of a symmetric hand that is closer to where it is."""
    poses = [pointing(forward, closing), pointing(forward, -closing)]
    return max(poses, key=lambda pose: float(np.trace(pose @ robot.pose.T)))
