"""Predicates of the tabletop: each is `measure op threshold`, a measure being one physical quantity of the scene.

`vocabulary.json` names, words and thresholds them; the functions here measure. Shapes: n environments, T tasks,
M distinct measures, A atoms of the longest task.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import AtomSpec, TaskSpec
from structrl.sims.base import AtomTest
from structrl.sims.tabletop.scene import TABLE, View
from structrl.sims.tabletop.settings import Array
from structrl.sims.vocabulary import load_vocabulary

VOCABULARY = load_vocabulary("tabletop")


def _index(view: View, item: str) -> int:
    return view.scene.objects.index(item)


def _outside(view: View, item: str, container: str) -> Array:
    return view.outside(container, view.position(item))


def _height(view: View, item: str) -> Array:
    return view.lowest(_index(view, item))


def rest(view: View, item: str, support: str) -> tuple[Array, Array]:
    """Height of an object's lowest point above a support [n], and how far its centre is beyond its edge [n]."""
    low, centre = _height(view, item), view.position(item)
    if support == TABLE:
        return low, np.full(len(low), -np.inf)
    if support in view.scene.objects:
        below = view.position(support)
        top = 2 * below[:, 2] - _height(view, support)  # objects are symmetric about their centres
        edge = view.scene.half_size[_index(view, support), :2].min()
        return low - top, np.hypot(*(centre - below)[:, :2].T) - edge
    mark = view.scene.marks[support]
    apart = centre - view.place(mark)
    return low - (view.place(mark)[:, 2] + mark.half[2]), (np.abs(apart[:, :2]) - mark.half[:2]).max(1)


def _resting(view: View, item: str, support: str) -> Array:
    height, beyond = rest(view, item, support)
    # One may sink into a support by its softness, and through no table: there, the height alone says it.
    return height if support == TABLE else np.maximum(np.abs(height), beyond)


def _tilt(view: View, item: str) -> Array:
    return np.arccos(np.clip(view.upright(_index(view, item)), -1, 1))


def _gap(view: View, item: str) -> Array:
    return view.gaps[:, _index(view, item)].max(-1)


def _distance(view: View, a: str, b: str) -> Array:
    return np.linalg.norm(view.position(a) - view.position(b), axis=-1)


def _pressed(view: View, button: str) -> Array:
    return view.pressed[:, view.scene.setting.buttons.index(button)].astype(float)


def _presses(view: View, button: str) -> Array:
    return view.presses[:, view.scene.setting.buttons.index(button)].astype(float)


MEASURES: dict[str, Callable[..., Array]] = {
    "in": _outside,
    "on": _resting,
    "lifted": _height,
    "upright": _tilt,
    "grasped": _gap,
    "near": _distance,
    "closed": View.share,
    "open": View.share,
    "turned_on": View.joint,
    "turned_off": View.joint,
    "pressed": _pressed,
    "was_pressed": _presses,
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
        allowed = set(kind.split("|"))
        if allowed.isdisjoint(entities.get(arg, ())):
            fitting = ", ".join(name for name, kinds in entities.items() if not allowed.isdisjoint(kinds))
            raise ValueError(f"{path}: {atom}: '{arg}' is no {kind} of scene '{scene}'; these are: {fitting or 'none'}")
    threshold = predicate.threshold
    for name, value in atom.params:  # a predicate has at most one parameter, its threshold
        if name not in predicate.params:
            raise ValueError(f"{path}: {atom}: '{predicate.name}' has no threshold '{name}'")
        threshold = float(value)
    return AtomTest(str(atom), predicate.op, threshold, predicate.unit, predicate.measure)
