"""Atoms of LIBERO tasks. LIBERO's own predicates are LIBERO's to decide (`_eval_predicate`), never re-implemented.

`grasped` is robosuite's own check, `near` and `lifted` compare positions. Measured values are for explanations only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from structrl.lang.spec import AtomSpec, TaskSpec
from structrl.sims.base import AtomTest
from structrl.sims.libero.world import Body, World
from structrl.sims.vocabulary import load_vocabulary

VOCABULARY = load_vocabulary("libero")
# structrl's word -> LIBERO's
OWN = {
    "in": "in",
    "on": "on",
    "open": "open",
    "closed": "close",
    "turned_on": "turnon",
    "turned_off": "turnoff",
    "up": "up",
}

Truth = Callable[[Body], bool]
Measure = Callable[[Body], float]


def atom_tests(task: TaskSpec, scene: str) -> tuple[AtomTest, ...]:
    """How each atom of a task is decided. The threshold is NaN where LIBERO's test is no single comparison.

    Raises:
        ValueError: an atom names a predicate, entity or threshold that the scene does not have.
    """
    return tuple(_test(atom, scene, task.path) for atom in task.atoms)


def _test(atom: AtomSpec, scene: str, path: str) -> AtomTest:
    predicate, entities = VOCABULARY.predicates.get(atom.predicate), VOCABULARY.scenes[scene]
    if predicate is None:
        raise ValueError(
            f"{path}: libero has no predicate '{atom.predicate}'; it has {', '.join(VOCABULARY.predicates)}"
        )
    if len(atom.args) != len(predicate.args):
        raise ValueError(f"{path}: {atom}: '{predicate.name}' takes {', '.join(predicate.args)}")
    for arg, kinds in zip(atom.args, predicate.args, strict=True):
        if not set(kinds.split("|")) & {*entities.get(arg, ()), "any"}:
            fitting = ", ".join(name for name, its in entities.items() if set(kinds.split("|")) & set(its))
            raise ValueError(f"{path}: {atom}: '{arg}' is no {kinds} of scene '{scene}'; these are: {fitting}")
    threshold = predicate.threshold if predicate.op else np.nan
    for name, value in atom.params:  # a predicate has at most one parameter, its threshold
        if name not in predicate.params:
            raise ValueError(f"{path}: {atom}: '{predicate.name}' has no threshold '{name}'")
        threshold = float(value)
    return AtomTest(
        str(atom), predicate.op[:1] or ">", threshold, predicate.unit, predicate.measure or predicate.meaning
    )


class AtomTable:
    """The atoms of one task on its world; `world.use` must have put the body in place."""

    def __init__(self, task: TaskSpec, tests: Sequence[AtomTest], world: World):
        self._world = world
        self._truths: list[Truth] = []
        self._measures: list[Measure] = []
        for a, (atom, test) in enumerate(zip(task.atoms, tests, strict=True)):
            measure = self._measure(atom, a)
            self._measures.append(measure)
            self._truths.append(self._truth(atom, test, measure))
        self._lifted = [(a, atom.args[0]) for a, atom in enumerate(task.atoms) if atom.predicate == "lifted"]
        self._width = len(task.atoms)

    def truth(self, body: Body) -> list[bool]:
        """Which atoms hold."""
        return [truth(body) for truth in self._truths]

    def values(self, body: Body) -> list[float]:
        """Measured values, NaN where LIBERO has no single measure."""
        return [measure(body) for measure in self._measures]

    def mark_start(self, body: Body) -> None:
        """Remember the heights from which `lifted` counts; call it when the scene has settled."""
        body.start_heights = np.zeros(self._width)
        for a, name in self._lifted:
            body.start_heights[a] = self._position(name)[2]

    def _position(self, name: str) -> Any:
        return self._world.env.object_states_dict[name].get_geom_state()["pos"]

    def _truth(self, atom: AtomSpec, test: AtomTest, measure: Measure) -> Truth:
        env = self._world.env
        if atom.predicate in OWN:
            state = [OWN[atom.predicate], *atom.args]
            return lambda body: bool(env._eval_predicate(state))
        if atom.predicate == "grasped":
            gripper, thing = env.robots[0].gripper, env.get_object(atom.args[0])
            return lambda body: bool(env._check_grasp(gripper, thing))
        if test.op == "<":
            return lambda body: bool(measure(body) < test.threshold)
        return lambda body: bool(measure(body) > test.threshold)

    def _measure(self, atom: AtomSpec, column: int) -> Measure:
        states, args = self._world.env.object_states_dict, atom.args
        match atom.predicate:
            case "near":
                return lambda body: float(np.linalg.norm(self._position(args[0]) - self._position(args[1])))
            case "lifted":
                return lambda body: float(self._position(args[0])[2] - body.start_heights[column])
            case "up":
                return lambda body: float(self._position(args[0])[2])
            case "turned_on" | "turned_off":
                return lambda body: float(states[args[0]].get_joint_state()[0])
            case "in":
                return lambda body: self._outside(*args)
            case _:
                return lambda body: float("nan")

    def _outside(self, thing: str, region: str) -> float:
        """How far an origin is beyond the box that LIBERO's In tests, m."""
        data = self._world.env.sim.data
        size = self._world.env.object_sites_dict[region].size
        half = np.abs(data.get_site_xmat(region) @ size)
        offset = self._position(thing) - data.get_site_xpos(region)
        low, high = -half, half
        low[2] -= 0.01
        return float(np.maximum(low - offset, offset - high).max())
