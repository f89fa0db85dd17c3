"""Height maps of a scene, looked at from above, and grasps found on them. Torch-free, runs beside LIBERO.

A grasp comes down from above. The hand is symmetric to a half turn; `yaw` is the direction of its closing axis.
"""

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

# Franka hand of robosuite 1.4, measured on its model (m). Heights are relative to the grip site, x along the closing
# axis, y across it.
FINGER = 0.020  # from a pad's inner to its outer side, along x, with a little play
PAD = 0.010  # half width of a finger pad, across
TIP = 0.010  # how far the fingers reach below the site
PALM = 0.031  # underside of the palm above the site
HAND = (0.105, 0.034)  # half extents of the palm
OPENINGS = (0.076, 0.060, 0.045, 0.030)  # between the pads: as wide as they go, and narrower where room is scarce
SLANT = 0.008  # spread of the edges that the pads meet, both together
PLAY = 0.006  # between pads and object


@dataclass(frozen=True)
class HeightMap:
    """Heights of what lies below the points of a grid; `body` is what was hit: an object, a moving part, or 0.

    Attributes:
        center: x, y of the middle of the grid.
        step: grid spacing, m.
        height: [K, K], first index along x.
        body: [K, K].
    """

    center: NDArray[np.float64]
    step: float
    height: NDArray[np.float64]
    body: NDArray[np.int64]

    def cell(self, xy: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Grid indices of points [..., 2]; points outside go to the border."""
        half = (len(self.height) - 1) / 2
        index = np.rint((xy - self.center) / self.step + half).astype(int).clip(0, len(self.height) - 1)
        return index[..., 0], index[..., 1]

    @property
    def points(self) -> NDArray[np.float64]:
        """x, y of the grid, [K, K, 2]."""
        axis = (np.arange(len(self.height)) - (len(self.height) - 1) / 2) * self.step
        return self.center + np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)

    def under(self, xy: NDArray[np.float64]) -> float:
        """Greatest height at points [n, 2]."""
        return float(self.height[self.cell(xy)].max())

    def highest(self, xy: NDArray[np.float64], along: float, across: float, yaw: float = 0.0) -> float:
        """Greatest height in a rectangle of half extents `along`, `across`, turned by `yaw`."""
        u = np.arange(-along, along + 1e-9, self.step)
        v = np.arange(-across, across + 1e-9, self.step)
        uv = np.stack(np.meshgrid(u, v, indexing="ij"), -1)
        return self.under(xy + uv @ rotation(yaw).T)


def rotation(yaw: float) -> NDArray[np.float64]:
    """Turns vectors of the plane by `yaw`."""
    c, s = np.cos(yaw), np.sin(yaw)
    return np.array([[c, -s], [s, c]])


def look_down(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    center: NDArray[np.float64],
    half: float,
    step: float,
    ignore: frozenset[int],
) -> HeightMap:
    """The height map around `center`; root bodies `ignore` are looked through.

    `mj_ray` will not do: it passes through geoms drawn transparent, as many of LIBERO's colliding ones are.
    """
    side = int(half / step) * 2 + 1
    lowest, body = np.full((side, side), -np.inf), np.zeros((side, side), int)
    seen = HeightMap(np.array(center[:2], float), step, lowest, body)
    points = seen.points
    for geom in np.flatnonzero((model.geom_contype > 0) | (model.geom_conaffinity > 0)).tolist():
        owner = int(model.geom_bodyid[geom])
        if int(model.body_rootid[owner]) in ignore:
            continue
        middle, radius = data.geom_xpos[geom], model.geom_rbound[geom]
        if radius == 0:  # a plane: level, as floors are
            near = np.ones((side, side), bool)
        else:
            near = np.linalg.norm(points - middle[:2], axis=-1) < radius
        if not near.any():
            continue
        turn, size = data.geom_xmat[geom].reshape(3, 3), model.geom_size[geom]
        kind = int(model.geom_type[geom])
        top = middle[2] + radius + 0.001
        rays = np.concatenate([points[near], np.full((near.sum(), 1), top)], -1)
        if kind == mujoco.mjtGeom.mjGEOM_BOX:
            height = top - _into_box((rays - middle) @ turn, -turn[2], size)
        elif kind in (mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_HFIELD):
            down = np.array([0.0, 0.0, -1.0])
            found = np.array([mujoco.mj_rayMesh(model, data, geom, ray, down) for ray in rays])
            height = np.where(found < 0, -np.inf, top - found)
        else:
            down = np.array([0.0, 0.0, -1.0])
            found = np.array([mujoco.mju_rayGeom(middle, turn.ravel(), size, ray, down, kind) for ray in rays])
            height = np.where(found < 0, -np.inf, top - found)
        higher = height > lowest[near]
        lowest[near] = np.where(higher, height, lowest[near])
        body[near] = np.where(higher, model.body_weldid[owner], body[near])
    return seen


def _into_box(
    start: NDArray[np.float64], direction: NDArray[np.float64], size: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Way along `direction` until rays from `start` [n, 3] enter a box around 0; infinite for those that miss."""
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = (-size - start) / direction, (size - start) / direction
    inside = np.abs(start) <= size
    level = np.abs(direction) < 1e-9
    near = np.where(level, np.where(inside, -np.inf, np.inf), np.minimum(a, b)).max(-1)
    far = np.where(level, np.where(inside, np.inf, -np.inf), np.maximum(a, b)).min(-1)
    return np.where(near <= far, near, np.inf)


@dataclass(frozen=True)
class Grasp:
    """Where the grip site goes, the direction of the closing axis, and how wide to open before; `cost` ranks grasps."""

    position: NDArray[np.float64]
    yaw: float
    opening: float
    cost: float


def find_grasps(
    seen: HeightMap,
    body: int,
    heavy: NDArray[np.float64],
    floor: float,
    yaw_now: float,
    yaws: NDArray[np.float64] | None = None,
) -> list[Grasp]:
    """Grasps of `body` from above, best first.

    A grasp encloses one stretch of the object that fits between the pads, with room beside it for the open fingers and
    above it for the palm. Cheap are a short way from the object's weight, edges square to the closing axis, a deep
    hold, and a small turn of the wrist.

    Args:
        seen: height map around the object.
        body: what to grasp.
        heavy: x, y of its centre.
        floor: what it stands on.
        yaw_now: the hand's present yaw.
        yaws: yaws to try; all without.
    """
    reach = np.arange(-0.11, 0.11, seen.step)
    found: list[Grasp] = []
    for yaw in np.arange(0, np.pi, np.pi / 12) if yaws is None else yaws:
        turn = (yaw - yaw_now + np.pi / 2) % np.pi - np.pi / 2
        for across in np.arange(-0.063, 0.0631, 0.007):
            strip = np.arange(across - PAD, across + PAD + 1e-9, seen.step)
            uv = np.stack(np.meshgrid(strip, reach, indexing="ij"), -1)[..., ::-1]  # [v, u, (u, v)]
            cells = seen.cell(heavy + uv @ rotation(yaw).T)
            height, mine = seen.height[cells], seen.body[cells] == body
            if not mine.any():
                continue
            top = height[mine].max()
            for depth in (0.020, 0.014, 0.009, 0.005):
                z = max(top - depth, floor + TIP + 0.002)
                if top - z < 0.003:
                    continue
                blocked = height > z - TIP - 0.002
                wide = blocked.any(0)
                edges = np.flatnonzero(np.diff(np.concatenate([[0], wide.astype(int), [0]])))
                for first, end in edges.reshape(-1, 2):
                    center = (reach[first] + reach[end - 1]) / 2
                    width = (end - first) * seen.step
                    if not mine[:, first:end].any():
                        continue
                    beside = np.where(wide, np.abs(reach - center), np.inf)
                    beside[first:end] = np.inf
                    room = 2 * (beside.min() - FINGER)
                    opening = next((o for o in OPENINGS if o <= room), 0.0)
                    if opening < width + PLAY:
                        continue  # too wide, or a finger would come down on something
                    solid = blocked[:, first:end] & mine[:, first:end]
                    rows = solid.any(1)
                    if rows.mean() < 0.7:
                        continue  # the pads would hold it by a corner
                    edge = solid[rows].argmax(1) * seen.step
                    back = solid[rows][:, ::-1].argmax(1) * seen.step
                    if edge.std() + back.std() > SLANT:
                        continue  # a corner, or a wall at a slant: the pads would slip
                    at = heavy + rotation(yaw) @ np.array([center, across])
                    if seen.highest(at, *HAND, yaw) > z + PALM - 0.004:
                        continue
                    away = np.hypot(center, across)
                    held = min(top - z, 0.012)
                    cost = 1.0 * away + 1.5 * (edge.std() + back.std()) - 1.5 * held + 0.02 * abs(turn)
                    cost += 0.3 * max(width - 0.05, 0) + 0.1 * (OPENINGS[0] - opening)
                    found.append(Grasp(np.array([*at, z]), yaw_now + turn, opening, float(cost)))
    return sorted(found, key=lambda grasp: grasp.cost)
