"""Predicates of the tabletop: each is `measure op threshold`, a measure being one physical quantity of the scene.

`vocabulary.json` names, words and thresholds them; the functions here measure. Shapes: n environments, T tasks,
M distinct measures, A atoms of the longest task.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import AtomSpec, TaskSpec
from structrl.sims.base import AtomTest
from structrl.sims.tabletop.scene import BOX, GRIPPER, OBJECTS, Array, View, outside_box
from structrl.sims.vocabulary import load_vocabulary

VOCABULARY = load_vocabulary("tabletop")


def _position(view: View, thing: str) -> Array:
    if thing == GRIPPER:
        return view.hand[:, :3]
    if thing == BOX:
        return view.box
    return view.objects[:, OBJECTS.index(thing)]


def _outside(view: View, item: str, container: str) -> Array:
    return outside_box(_position(view, item) - _position(view, container))


def _height(view: View, item: str, surface: str = "") -> Array:
    return view.lowest(OBJECTS.index(item))


def _tilt(view: View, item: str) -> Array:
    return np.arccos(np.clip(view.upright(OBJECTS.index(item)), -1, 1))


def _gap(view: View, item: str) -> Array:
    return view.gaps[:, OBJECTS.index(item)].max(-1)


def _distance(view: View, a: str, b: str) -> Array:
    return np.linalg.norm(_position(view, a) - _position(view, b), axis=-1)


def _lid(view: View, container: str) -> Array:
    return view.lid


MEASURES: dict[str, Callable[..., Array]] = {
    "in": _outside,
    "on": _height,
    "lifted": _height,
    "upright": _tilt,
    "grasped": _gap,
    "near": _distance,
    "closed": _lid,
    "open": _lid,
}


class AtomTable:
    """The atoms of several tasks of one scene: which measures to take, and the threshold of each atom.

    Raises:
        ValueError: an atom names a predicate, entity or threshold that the scene does not have.
    """

    def __init__(self, tasks: Sequence[TaskSpec], scene: str):
        width = max((len(task.atoms) for task in tasks), default=0)
        self.measures: list[tuple[str, tuple[str, ...]]] = []  # M distinct (predicate, arguments)
        self.column = np.full((len(tasks), width), -1)  # [T, A] into measures; -1 is padding
        self.threshold = np.full((len(tasks), width), np.nan)  # [T, A]
        self.less = np.ones((len(tasks), width), bool)  # [T, A] op is '<'
        self.tests: list[tuple[AtomTest, ...]] = []
        for t, task in enumerate(tasks):
            tests = []
            for a, atom in enumerate(task.atoms):
                test = _test(atom, scene, task.path)
                measure = (atom.predicate, atom.args)
                if measure not in self.measures:
                    self.measures.append(measure)
                self.column[t, a] = self.measures.index(measure)
                self.threshold[t, a], self.less[t, a] = test.threshold, test.op == "<"
                tests.append(test)
            self.tests.append(tuple(tests))

    def values(self, view: View, task: NDArray[np.int64]) -> NDArray[np.float64]:
        """Measured value of each atom, [n, A]; NaN is padding. `task` [n] are rows of the list of tasks."""
        measured = np.full((len(task), len(self.measures) + 1), np.nan)  # the last column serves index -1
        for m, (predicate, args) in enumerate(self.measures):
            measured[:, m] = MEASURES[predicate](view, *args)
        return np.take_along_axis(measured, self.column[task], axis=1)

    def truth(self, values: NDArray[np.float64], task: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which atoms hold, [n, A], decided from `values` and nothing else; padding is False."""
        threshold = self.threshold[task]
        return np.where(self.less[task], values < threshold, values > threshold)


def _test(atom: AtomSpec, scene: str, path: str) -> AtomTest:
    predicate, entities = VOCABULARY.predicates.get(atom.predicate), VOCABULARY.scenes[scene]
    if predicate is None:
        raise ValueError(f"{path}: tabletop has no predicate '{atom.predicate}'; it has {', '.join(MEASURES)}")
    if len(atom.args) != len(predicate.args):
        raise ValueError(f"{path}: {atom}: '{predicate.name}' takes {', '.join(predicate.args)}")
    for arg, kind in zip(atom.args, predicate.args, strict=True):
        if kind not in entities.get(arg, ()):
            fitting = ", ".join(name for name, kinds in entities.items() if kind in kinds)
            raise ValueError(f"{path}: {atom}: '{arg}' is no {kind} of scene '{scene}'; these are: {fitting}")
    threshold = predicate.threshold
    for name, value in atom.params:  # a predicate has at most one parameter, its threshold
        if name not in predicate.params:
            raise ValueError(f"{path}: {atom}: '{predicate.name}' has no threshold '{name}'")
        threshold = float(value)
    return AtomTest(str(atom), predicate.op, threshold, predicate.unit, predicate.measure)
