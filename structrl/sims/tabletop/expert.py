"""A scripted expert for the lunch scene: apple, then drink, then lid.

It is a *funnel*: within a mode the target is a smooth function of the state (high while far sideways, down when above),
with no timers that a policy could not see from an observation. A fixed order of objects matters for imitation: with
several orders a policy learns their average. Shapes: n environments asked for, E all.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from structrl.seeding import generator
from structrl.sims.base import Ids, Start
from structrl.sims.tabletop.scene import OBJECTS, Array, View, outside_box
from structrl.sims.tabletop.simulator import STEP, TabletopSimulator

REACH, GRASP, CARRY, RELEASE, RISE, DESCEND, PUSH = range(7)
GRASP_HEIGHT = np.array([0.012, 0.018])  # of the fingertips above the table, per object
SLOT = np.array([[-0.042, -0.040], [-0.042, 0.040]])  # where in the box, from its centre
GRASP_STEPS, RELEASE_STEPS = 4, 3
BEHIND, BEYOND, HIGH, LOW = 0.20, -0.05, 0.30, 0.18  # lid: x from the box's centre, heights
GAIN = 0.7
ATTEMPTS = 64  # hidden offsets drawn per episode; later attempts reuse them


class TabletopExpert:
    """Vectorised state-feedback expert on the true state.

    Args:
        sim: the simulator it acts in.
        slop: standard deviation, in m and per axis, of a hidden offset of the grasp, drawn anew for every attempt;
            makes demonstrations of mixed quality.
    """

    def __init__(self, sim: TabletopSimulator, slop: float = 0.0):
        if slop < 0:
            raise ValueError(f"slop must be >= 0 m, not {slop}")
        self.sim, self.slop = sim, slop
        self._mode = np.zeros(sim.num_envs, np.int64)
        self._count = np.zeros(sim.num_envs, np.int64)  # steps in GRASP and RELEASE
        self._attempt = np.zeros(sim.num_envs, np.int64)
        self._offset = np.zeros((sim.num_envs, ATTEMPTS, 2))

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Begin episodes; hidden offsets are a pure function of each start's seed."""
        self._mode[ids] = REACH
        self._count[ids] = self._attempt[ids] = 0
        for i, start in zip(ids, starts, strict=True):
            # the extra counters keep this stream apart from the layout's and from a redraw's attempt number
            self._offset[i] = self.slop * generator(*start.seed, 0, 1).standard_normal((ATTEMPTS, 2))

    def act(self, ids: Ids) -> NDArray[np.float32]:
        """Actions [n, 5] in [-1, 1] for the current true state; call once per control step."""
        view = self.sim.view(ids)
        rows = np.arange(len(ids))
        hand, box = view.hand[:, :3], view.box
        inside = outside_box(view.objects - box[:, None]) < 0  # [n, O]
        todo = np.where(inside.all(1), len(OBJECTS), inside.argmin(1))  # first object not in the box
        o = np.minimum(todo, len(OBJECTS) - 1)
        item = view.objects[rows, o]

        mode = self._advance(ids, view, todo, item)

        goal_xy = np.where((mode == CARRY)[:, None], box[:, :2] + SLOT[o], item[:, :2] + self._aim(ids))
        d = np.linalg.norm(goal_xy - hand[:, :2], axis=1)
        z = hand[:, 2]
        speed = np.ones(len(ids))
        target = np.concatenate([goal_xy, z[:, None], np.zeros((len(ids), 1))], axis=1)  # [n, 4]
        grip = np.ones(len(ids))

        reach = mode == REACH
        above = np.clip(8 * (d - 0.006) + 0.25 * (np.abs(view.hand[:, 3]) - 0.1), 0, 0.11)
        target[:, 2] = np.where(reach, GRASP_HEIGHT[o] + above, target[:, 2])
        # leave what was just released, and the box's walls, upwards first
        speed = np.where(reach, np.clip(1 - (target[:, 2] - z - 0.01) / 0.04, 0, 1), speed)

        hold = (mode == GRASP) | (mode == RELEASE)
        target[hold] = view.command[hold, :4]
        grip[(mode == GRASP) | (mode == CARRY)] = -1

        carry = mode == CARRY
        target[:, 2] = np.where(carry, 0.08 + np.clip(2 * (d - 0.015), 0, 0.075), target[:, 2])
        speed = np.where(carry, np.clip((z - 0.03) / 0.07, 0, 1), speed)

        for phase, x, height in ((RISE, BEHIND, HIGH), (DESCEND, BEHIND, LOW), (PUSH, BEYOND, LOW)):
            now = mode == phase
            target[now, 0], target[now, 1], target[now, 2] = box[now, 0] + x, box[now, 1], height
        speed = np.where(mode == RISE, np.clip((z - 0.16) / 0.08, 0, 1), speed)  # over the upright lid, not through it

        error = target - view.command[:, :4]
        error[:, :2] *= speed[:, None]
        action = np.concatenate([GAIN * error / STEP, grip[:, None]], axis=1)
        return np.clip(action, -1, 1).astype(np.float32)

    def _aim(self, ids: Ids) -> Array:
        return self._offset[ids, self._attempt[ids] % ATTEMPTS]

    def _advance(self, ids: Ids, view: View, todo: NDArray[np.int64], item: Array) -> NDArray[np.int64]:
        """Change modes where the state says so; returns them, [n]."""
        mode, count = self._mode[ids], self._count[ids] + 1
        hand, box = view.hand[:, :3], view.box
        o = np.minimum(todo, len(OBJECTS) - 1)
        d_item = np.linalg.norm(item[:, :2] + self._aim(ids) - hand[:, :2], axis=1)
        d_slot = np.linalg.norm(box[:, :2] + SLOT[o] - hand[:, :2], axis=1)
        held = np.linalg.norm(item - hand, axis=1) < 0.05
        before = mode.copy()
        done = todo == len(OBJECTS)

        mode[(before == REACH) & (d_item < 0.008) & (np.abs(hand[:, 2] - GRASP_HEIGHT[o]) < 0.006)] = GRASP
        mode[(before == GRASP) & (count >= GRASP_STEPS)] = CARRY
        lost = (before == CARRY) & ~held
        mode[lost] = REACH
        mode[(before == CARRY) & held & (d_slot < 0.015) & (hand[:, 2] < 0.092)] = RELEASE
        released = (before == RELEASE) & (count >= RELEASE_STEPS)
        mode[released] = REACH
        mode[done & ((before == REACH) | released)] = RISE
        mode[(before == RISE) & (hand[:, 0] > box[:, 0] + BEHIND - 0.02)] = DESCEND
        mode[(before == DESCEND) & (hand[:, 2] < LOW + 0.02)] = PUSH
        self._attempt[ids] += (lost | released).astype(np.int64)
        count[mode != before] = 0
        self._mode[ids], self._count[ids] = mode, count
        return mode
