"""A scripted expert for the tabletop: it pursues the goals of a task (see `goals`) one after the other.

Its skills are *funnels*: the target is a smooth function of the state (high while far sideways, down when above), with
no timers that a policy could not see from an observation, but for the few steps in which the fingers close and open. A
fixed order of goals matters for imitation: with several orders a policy learns their average.

Shapes: n environments of a call, E all, G goals of the longest task.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import AtomSpec
from structrl.seeding import generator
from structrl.sims.base import Ids, Start
from structrl.sims.tabletop.goals import goals
from structrl.sims.tabletop.predicates import AtomTable, rest
from structrl.sims.tabletop.scene import View
from structrl.sims.tabletop.settings import Array
from structrl.sims.tabletop.simulator import STEP, TabletopSimulator
from structrl.sims.tabletop.skills import Motion, press, push, rising

REACH, GRASP, CARRY, RELEASE, RISE, DESCEND, PUSH = range(7)
GRASP_STEPS, RELEASE_STEPS = 4, 3
BEHIND, BEYOND, HIGH, LOW = 0.20, -0.05, 0.30, 0.18  # lid: x from the box's centre, heights
WIDE_OPEN = 0.8  # share from which a drawer or cover is out of the way
GAIN = 0.7
ATTEMPTS = 64  # hidden offsets drawn per episode; later attempts reuse them


class TabletopExpert:
    """Vectorised state-feedback expert on the true state.

    Args:
        sim: the simulator it acts in.
        slop: standard deviation, in m and per axis, of a hidden offset of the grasp, drawn anew for every attempt;
            makes demonstrations of mixed quality.

    Raises:
        ValueError: a negative slop, or a task that the expert has no skills for.
    """

    def __init__(self, sim: TabletopSimulator, slop: float = 0.0):
        if slop < 0:
            raise ValueError(f"slop must be >= 0 m, not {slop}")
        self.sim, self.slop = sim, slop
        pursued = [goals(task) for task in sim.tasks]
        self.goals: list[AtomSpec] = list(dict.fromkeys(atom for each in pursued for atom in each))
        # The goals as atoms of tasks of their own, measured like any others
        self._table = AtomTable(
            [replace(task, atoms=each) for task, each in zip(sim.tasks, pursued, strict=True)], sim.scene.name
        )
        self._numbers = np.full((len(sim.tasks), max(map(len, pursued))), -1)  # [T, G] into goals
        for t, each in enumerate(pursued):
            self._numbers[t, : len(each)] = [self.goals.index(atom) for atom in each]
        self._task = np.zeros(sim.num_envs, np.int64)
        self._goal = np.zeros(sim.num_envs, np.int64)  # column of _numbers
        self._mode = np.zeros(sim.num_envs, np.int64)
        self._count = np.zeros(sim.num_envs, np.int64)  # steps in GRASP and RELEASE
        self._attempt = np.zeros(sim.num_envs, np.int64)
        self._offset = np.zeros((sim.num_envs, ATTEMPTS, 2))

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Begin episodes; hidden offsets are a pure function of each start's seed."""
        self._task[ids] = [start.task for start in starts]
        self._mode[ids] = REACH
        self._goal[ids] = self._count[ids] = self._attempt[ids] = 0
        for i, start in zip(ids, starts, strict=True):
            # the extra counters keep this stream apart from the layout's and from a redraw's attempt number
            self._offset[i] = self.slop * generator(*start.seed, 0, 1).standard_normal((ATTEMPTS, 2))

    def act(self, ids: Ids) -> NDArray[np.float32]:
        """Actions [n, 5] in [-1, 1] for the current true state; call once per control step."""
        self._finish_release(ids)
        view = self.sim.view(ids)
        number = self._choose(ids, view)
        action = np.empty((len(ids), 5))
        for k in np.unique(number):
            rows = np.flatnonzero(number == k)
            some = ids[rows]
            seen = view if len(some) == len(ids) else self.sim.view(some)
            motion = self._idle(seen) if k < 0 else self._pursue(self.goals[k], some, seen)
            hold = (self._mode[some] == GRASP) | (self._mode[some] == RELEASE)
            error = np.where(hold[:, None], 0.0, motion.target - seen.command[:, :4])
            error[:, :2] *= motion.speed[:, None]
            grip = np.where(self._mode[some] == RELEASE, 1.0, motion.grip)
            action[rows] = np.concatenate([GAIN * error / STEP, grip[:, None]], axis=1)
        return np.clip(action, -1, 1).astype(np.float32)

    def _finish_release(self, ids: Ids) -> None:
        self._count[ids] += 1
        done = ids[(self._mode[ids] == RELEASE) & (self._count[ids] >= RELEASE_STEPS)]
        self._mode[done] = REACH
        self._attempt[done] += 1

    def _choose(self, ids: Ids, view: View) -> NDArray[np.int64]:
        """The first goal that is not reached, as a number into `goals`, [n]; -1 when all are."""
        task = self._task[ids]
        number = self._numbers[task]
        reached = self._table.truth(self._table.values(view, task), task) | (number < 0)
        rows = np.arange(len(ids))
        reached[rows, self._goal[ids]] &= self._mode[ids] != CARRY  # what is still in the hand has not arrived
        goal = reached.argmin(1)
        self._goal[ids] = goal
        return np.where(reached.all(1), -1, number[rows, goal])

    def _pursue(self, goal: AtomSpec, ids: Ids, view: View) -> Motion:
        scene, (thing, *others) = self.sim.scene, goal.args
        if goal.predicate in ("in", "on"):
            return self._place(ids, view, scene.objects.index(thing), others[0])
        if thing in scene.setting.buttons:
            self._leave(ids)
            return press(view, thing)
        if f"{thing}_handle" in scene.marks:
            self._leave(ids)
            return push(view, thing, opening=goal.predicate in ("open", "turned_on"))
        if goal.predicate == "closed":
            return self._shut_lid(ids, view, thing)
        raise ValueError(f"the expert has no skill for {goal}")

    def _idle(self, view: View) -> Motion:
        target = np.c_[view.command[:, :2], np.full(len(view.hand), HIGH), np.zeros(len(view.hand))]
        return Motion(target, np.ones(len(target)), np.ones(len(target)))

    def _leave(self, ids: Ids) -> None:
        """Forget a grasp that was going on (a release is finished first)."""
        self._mode[ids] = np.where(self._mode[ids] == RELEASE, RELEASE, REACH)

    def _aim(self, ids: Ids) -> Array:
        return self._offset[ids, self._attempt[ids] % ATTEMPTS]

    def _place(self, ids: Ids, view: View, o: int, where: str) -> Motion:
        """Grasp object `o`, carry it, and let go in or on `where`; a drawer or cover in the way is opened first."""
        scene, setting = view.scene, view.scene.setting
        hand, item = view.hand[:, :3], view.objects[:, o]
        spot = view.position(where)[:, :2]
        if where in setting.slots:
            spot = spot + setting.slots[where][o]
        if where in setting.drop:
            low, close, tolerance = np.full(len(ids), setting.drop[where]), 0.015, 0.012
            calm = np.ones(len(ids), bool)
        else:
            height = rest(view, scene.objects[o], where)[0]
            # The hand lags behind its command, so it comes down ever more slowly: what is pressed jumps when let go.
            low = hand[:, 2] - np.where(height > 0.03, 1.0, 0.3) * (height - 0.001)
            close, tolerance = 0.004, 0.0006
            calm = np.abs(view.command[:, :2] - hand[:, :2]).max(1) < 0.004

        mode = self._mode[ids]
        before = np.where(mode <= RELEASE, mode, REACH)
        mode = before.copy()
        aim = item[:, :2] + self._aim(ids)
        d_item = np.linalg.norm(aim - hand[:, :2], axis=1)
        d_spot = np.linalg.norm(spot - hand[:, :2], axis=1)
        held = np.linalg.norm(item - hand, axis=1) < 0.05
        grasp = np.full(len(ids), setting.grasp[o])
        if setting.slots.keys() - setting.drop.keys():  # there are surfaces, on which it may lie, or on another object
            low_end = view.lowest(o)
            grasp += np.where(low_end > 0.005, low_end, 0.0)
        mode[(before == REACH) & (d_item < 0.008) & (np.abs(hand[:, 2] - grasp) < 0.006)] = GRASP
        mode[(before == GRASP) & (self._count[ids] >= GRASP_STEPS)] = CARRY
        lost = (before == CARRY) & ~held
        mode[lost] = REACH
        mode[(before == CARRY) & held & calm & (d_spot < close) & (hand[:, 2] < low + tolerance)] = RELEASE
        self._attempt[ids] += lost
        self._count[ids] = np.where(mode == before, self._count[ids], 0)
        self._mode[ids] = mode

        d = np.linalg.norm(item[:, :2] + self._aim(ids) - hand[:, :2], axis=1)
        z = hand[:, 2]
        above = np.clip(8 * (d - 0.006) + 0.25 * (np.abs(view.hand[:, 3]) - 0.1), 0, setting.travel)
        carry = mode == CARRY
        target = np.zeros((len(ids), 4))
        target[:, :2] = np.where(carry[:, None], spot, item[:, :2] + self._aim(ids))
        target[:, 2] = np.where(carry, low + np.clip(2 * (d_spot - 0.015), 0, 0.075), grasp + above)
        lifted = np.clip((z - 0.03) / 0.07, 0, 1)
        if where not in setting.drop:
            lifted = np.where(d_spot < 0.03, 1.0, lifted)  # settle on a low surface
        motion = Motion(target, np.where(carry, lifted, rising(target[:, 2], z)), np.where(mode == REACH, 1.0, -1.0))

        if f"{where}_handle" in scene.marks:
            blocked = (view.share(where) < WIDE_OPEN) & (mode == REACH)
            motion = push(view, where, opening=True).where(blocked, motion)
        return motion

    def _shut_lid(self, ids: Ids, view: View, box: str) -> Motion:
        """Go behind the upright lid, over it, and push it over."""
        hand, base = view.hand[:, :3], view.position(box)
        before = self._mode[ids]
        mode = np.where((before < RISE) & (before != RELEASE), RISE, before)
        mode[(before == RISE) & (hand[:, 0] > base[:, 0] + BEHIND - 0.02)] = DESCEND
        mode[(before == DESCEND) & (hand[:, 2] < LOW + 0.02)] = PUSH
        self._mode[ids] = mode
        target = np.zeros((len(ids), 4))
        for phase, x, height in ((RISE, BEHIND, HIGH), (DESCEND, BEHIND, LOW), (PUSH, BEYOND, LOW)):
            now = mode == phase
            target[now, 0], target[now, 1], target[now, 2] = base[now, 0] + x, base[now, 1], height
        speed = np.where(mode == RISE, np.clip((hand[:, 2] - 0.16) / 0.08, 0, 1), 1.0)  # over the lid, not through it
        return Motion(target, speed, np.ones(len(ids)))
