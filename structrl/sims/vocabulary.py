"""A simulator's vocabulary (torch-free): its predicates, the verbs that stand for them, and the entities of its scenes.

It is data beside the simulator, `structrl/sims/<sim>/vocabulary.json`, so that tasks are checked without starting one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Param:
    """A threshold that a task may give by keyword: SI unit ("m", "rad", "s", "steps", "1") and default."""

    unit: str
    default: float


@dataclass(frozen=True)
class Predicate:
    """A test `measure op threshold [unit]` on entities.

    `args` are kinds of entities: "object", several "object|container", or "any". A `pulse` is true only in the step in
    which it happens; the predicate that stays true from then on is `was_NAME`. `excludes` names predicates that are
    never true of the same entities at the same time (said on one side, it counts for both).
    """

    name: str
    args: tuple[str, ...]
    meaning: str
    measure: str = ""
    op: str = ""
    threshold: float = 0.0
    unit: str = ""
    params: Mapping[str, Param] = field(default_factory=dict)
    pulse: bool = False
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verb:
    """A word of instruction that stands for a predicate on the same arguments."""

    name: str
    args: tuple[str, ...]
    predicate: str
    meaning: str


@dataclass(frozen=True)
class Vocabulary:
    """What a simulator's tasks may say. `has_success`: it has a success check of its own."""

    sim: str
    control_hz: float
    has_success: bool
    predicates: Mapping[str, Predicate]
    verbs: Mapping[str, Verb]
    scenes: Mapping[str, Mapping[str, tuple[str, ...]]]  # scene -> entity -> its kinds

    @property
    def words(self) -> list[str]:
        """Verbs and predicates."""
        return sorted({*self.predicates, *self.verbs})

    def predicate(self, word: str) -> Predicate | None:
        """The predicate that a verb or a predicate's own name stands for, None if the word is unknown."""
        if word in self.verbs:
            word = self.verbs[word].predicate
        return self.predicates.get(word)

    def kinds(self, word: str) -> tuple[str, ...]:
        """Argument kinds of a verb or predicate.

        Raises:
            KeyError: for an unknown word.
        """
        return self.verbs[word].args if word in self.verbs else self.predicates[word].args


def parse_vocabulary(text: str, path: str = "<string>") -> Vocabulary:
    """Read the JSON text of a vocabulary.

    Raises:
        ValueError: for unknown or missing keys, and for verbs that do not fit their predicate; names `path`.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        predicates = {name: _predicate(name, **given) for name, given in data.pop("predicates").items()}
        verbs = {name: Verb(name, tuple(given.pop("args")), **given) for name, given in data.pop("verbs").items()}
        scenes = {
            scene: {entity: tuple(kinds) for entity, kinds in entities.items()}
            for scene, entities in data.pop("scenes", {}).items()
        }
        vocabulary = Vocabulary(predicates=predicates, verbs=verbs, scenes=scenes, **data)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a vocabulary: {type(error).__name__}: {error}") from error
    for each in predicates.values():
        for other in each.excludes:
            if other not in predicates or len(predicates[other].args) != len(each.args):
                raise ValueError(f"{path}: '{each.name}' excludes '{other}', no predicate of as many arguments")
    for verb in verbs.values():
        meant = predicates.get(verb.predicate)
        if meant is None:
            raise ValueError(f"{path}: verb '{verb.name}' stands for the unknown predicate '{verb.predicate}'")
        if len(meant.args) != len(verb.args):
            raise ValueError(
                f"{path}: verb '{verb.name}' has {len(verb.args)} arguments, '{meant.name}' {len(meant.args)}"
            )
        if verb.name in predicates and verb.name != verb.predicate:
            raise ValueError(f"{path}: '{verb.name}' is a verb for '{verb.predicate}' and also a predicate")
    return vocabulary


def _predicate(name: str, **given: Any) -> Predicate:
    params = {param: Param(**each) for param, each in given.pop("params", {}).items()}
    excludes = tuple(given.pop("excludes", ()))
    return Predicate(name, args=tuple(given.pop("args")), params=params, excludes=excludes, **given)


def simulators() -> list[str]:
    """Names of the simulators with a vocabulary."""
    return sorted(each.name for each in files("structrl.sims").iterdir() if (each / "vocabulary.json").is_file())


@cache
def load_vocabulary(sim: str) -> Vocabulary:
    """The vocabulary of a simulator.

    Raises:
        ValueError: for a simulator without one; says which there are.
    """
    known = simulators()
    if sim not in known:
        raise ValueError(f"no simulator '{sim}'; there are: {', '.join(known) or 'none'}")
    file = files("structrl.sims") / sim / "vocabulary.json"
    return parse_vocabulary(file.read_text(encoding="utf-8"), str(file))
