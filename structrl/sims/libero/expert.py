"""A scripted expert for LIBERO's tasks, on the true state. Torch-free.

It has no script per task: it goes through the plan of the task file, first step first, and knows a skill for every
predicate. A step that did not work is tried again.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import AtomSpec, SubtaskSpec, TaskSpec
from structrl.seeding import generator
from structrl.sims.base import Ids, Start
from structrl.sims.libero import articulated
from structrl.sims.libero.predicates import OWN
from structrl.sims.libero.simulator import LiberoSimulator
from structrl.sims.libero.skills import OPEN, Robot, Steps, UnableError

ROUNDS = 6  # through the whole plan
TRIES = 3  # to take an object


class LiberoExpert:
    """Acts in the environments of a LIBERO simulator; it solves most tasks of libero_spatial, libero_object,
    libero_goal and libero_10 (docs/libero_demonstrations.md counts).

    Args:
        simulator: whose true state it reads.
        slop: spread of its grasps, m.
    """

    def __init__(self, simulator: LiberoSimulator, slop: float = 0.0):
        self.simulator, self.slop = simulator, slop
        self._scripts: dict[int, Steps] = {}

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Begin episodes."""
        for i, start in zip(ids.tolist(), starts, strict=True):
            robot = Robot(*self.simulator.world(i), self.slop, generator(*start.seed, 1))
            self._scripts[i] = script(robot, self.simulator.tasks[start.task])

    def act(self, ids: Ids) -> NDArray[np.float32]:
        """Actions [n, 7] of one control step; it rests when it is done or at its wits' end."""
        actions = np.zeros((len(ids), 7), np.float32)
        actions[:, 6] = OPEN
        for row, i in zip(actions, ids.tolist(), strict=True):
            self.simulator.world(i)  # puts the environment in place
            action = next(self._scripts[i], None)
            if action is not None:
                row[:] = action
        return actions


def script(robot: Robot, task: TaskSpec) -> Steps:
    """Actions of an episode."""
    dependents = [[other for other in task.subtasks if i in other.prerequisites] for i in range(len(task.subtasks))]
    order = sorted(range(len(task.subtasks)), key=lambda i: len(task.subtasks[i].prerequisites))
    for _ in range(ROUNDS):
        missed: set[int] = set()
        for i in order:
            if missed & set(task.subtasks[i].prerequisites):
                continue  # no drawer is shut before the bowl is in it
            later = [wanted(task, other) for other in dependents[i]]
            if any(all(holds(robot, atom) for atom in atoms) for atoms in later):
                continue  # what it is for has been reached
            for atom in wanted(task, task.subtasks[i]):
                try:
                    yield from achieve(robot, atom, share(task, atom))
                except UnableError:
                    yield from robot.rise(0.05, OPEN)
                if not holds(robot, atom):
                    missed.add(i)


def wanted(task: TaskSpec, subtask: SubtaskSpec) -> list[AtomSpec]:
    """Atoms of a subtask that are to become true: those without `not`."""
    following = [*subtask.program[1:], None]
    return [
        task.atoms[op[1]]
        for op, after in zip(subtask.program, following, strict=True)
        if op[0] == "atom" and after != ("not",)
    ]


def holds(robot: Robot, atom: AtomSpec) -> bool:
    """Whether an atom is true, by LIBERO's predicate or robosuite's grasp check."""
    if atom.predicate == "grasped":
        return robot.grasps(atom.args[0])
    if atom.predicate not in OWN:
        raise UnableError(f"no skill for {atom}")
    return bool(robot.env._eval_predicate([OWN[atom.predicate], *atom.args]))


def share(task: TaskSpec, atom: AtomSpec) -> float:
    """Which part of a region an object goes to: the middle, or one half if two go there, and so on."""
    same = [a for a in task.atoms if a.predicate in ("in", "on") and a.args[1:] == atom.args[1:]]
    if atom not in same or len(same) == 1:
        return 0.0
    wide = 1.5 if atom.predicate == "on" else 1.0  # in a container they find room by themselves
    return wide * (2 * same.index(atom) - (len(same) - 1)) / len(same)


def achieve(robot: Robot, atom: AtomSpec, part: float) -> Iterator[NDArray[np.float64]]:
    """The skill that makes an atom true; `part` says where in a region, see `Robot.put`.

    Raises:
        UnableError: there is none, or it cannot be carried out from here.
    """
    if holds(robot, atom):
        return
    name = atom.args[0]
    match atom.predicate:
        case "grasped":
            yield from take(robot, name)
        case "in" | "on":
            try:
                yield from take(robot, name)
            except UnableError:
                if atom.predicate == "in":
                    raise
                yield from robot.drag(name, atom.args[1])  # a flat dish
                return
            if robot.held:
                yield from robot.put(name, atom.args[1], part)
        case "turned_on" | "turned_off":
            yield from articulated.turn(robot, name, atom.predicate == "turned_on")
        case "open":
            yield from articulated.slide(robot, name, out=True)
        case "closed":
            joint = articulated.Joint(robot, name)
            if joint.kind == articulated.SLIDE:
                yield from articulated.slide(robot, name, out=False)
            else:
                yield from articulated.swing_shut(robot, name)
        case _:
            raise UnableError(f"no skill for {atom}")


def take(robot: Robot, name: str) -> Steps:
    """Have an object in the hand."""
    for _ in range(TRIES):
        if robot.held and robot.held.name == name and robot.grasps(name):
            return
        yield from robot.pick(name)
