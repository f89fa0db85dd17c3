"""A simulator's vocabulary (torch-free): its predicates, the verbs that stand for them, and the entities of its scenes.

It is data beside the simulator, `structrl/sims/<sim>/vocabulary.json`, so that tasks are checked without starting one.
Scenes stand in it, or in a `manifest.json` beside it (structrl.sims.manifest).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from structrl.hints import read_bounded
from structrl.sims.manifest import FILE, Manifest, parse_manifest
from structrl.sims.registrations import registered
from structrl.sims.vocabulary_check import sense, shape

MAX_BYTES = 4_000_000  # of a vocabulary or manifest file


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

    def tests(self) -> list[str]:
        """What is compared with what, and the keyword arguments that change it, a line each."""
        lines = []
        if self.op:
            unit = "" if self.unit in ("", "1") else f" {self.unit}"
            lines.append(f"{self.measure or 'measure'} {self.op} {self.threshold:g}{unit}")
        for name, param in self.params.items():
            unit = "" if param.unit == "1" else f" {param.unit}"
            lines.append(f"{name}= sets the threshold (default {param.default:g}{unit})")
        if self.excludes:
            lines.append(f"never together with {', '.join(self.excludes)}")
        return lines


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
    scene_args: tuple[str, ...] = ("scene",)  # the simulator's arguments that make up the key of a scene
    manifest: Manifest | None = field(default=None, metadata={"derived": True})

    @property
    def complete(self) -> bool:
        """There are no scenes but these."""
        return bool(self.scenes) and not (self.manifest and self.manifest.partial)

    def title(self, scene: str) -> str:
        """What the simulator itself calls a scene, "" where that is not known."""
        known = self.manifest.scenes if self.manifest else {}
        return known[scene].title if scene in known else ""

    def success(self, scene: str | None) -> str:
        """The simulator's own check in a scene as a condition of the task language, "" where that is not known."""
        known = self.manifest.scenes if self.manifest else {}
        return known[scene].success if scene is not None and scene in known else ""

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
        ValueError: with everything that is wrong with it; names `path`.
    """
    try:
        data: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if isinstance(data, dict):
        data.setdefault("scenes", {})
    problems = list(shape(data, Vocabulary, "")) or list(sense(data))
    if problems:
        raise ValueError(f"{path}: " + "\n  ".join(["", *problems] if problems[1:] else problems))
    predicates = {name: _predicate(name, **given) for name, given in data.pop("predicates").items()}
    verbs = {name: Verb(name, tuple(given.pop("args")), **given) for name, given in data.pop("verbs").items()}
    scenes = {
        scene: {entity: tuple(kinds) for entity, kinds in entities.items()}
        for scene, entities in data.pop("scenes").items()
    }
    scene_args = tuple(data.pop("scene_args", ("scene",)))
    return Vocabulary(predicates=predicates, verbs=verbs, scenes=scenes, scene_args=scene_args, **data)


def read_vocabulary(file: Path | Traversable, beside: Path | Traversable) -> Vocabulary:
    """Read a vocabulary file, and its manifest if there is one.

    Raises:
        OSError: the vocabulary cannot be read.
        ValueError: either has mistakes or more than `MAX_BYTES`, or they do not belong together.
    """
    words = parse_vocabulary(_text(file), str(file))
    if not beside.is_file():
        return words
    manifest = parse_manifest(_text(beside), str(beside))
    if manifest.sim != words.sim:
        raise ValueError(f"{beside}: it is of '{manifest.sim}', and the vocabulary beside it of '{words.sim}'")
    twice = sorted(words.scenes.keys() & manifest.scenes)
    if twice:
        raise ValueError(f"{beside}: scene '{twice[0]}' is in the vocabulary too")
    odd = [key for key in manifest.scenes if key.count("/") != len(words.scene_args) - 1]
    if odd:
        example = "/".join(arg.upper() for arg in words.scene_args)
        raise ValueError(f"{beside}: scene '{odd[0]}': {example} is expected, as the vocabulary's scene_args say")
    scenes = {**words.scenes, **{key: manifest.entities_of(key) for key in manifest.scenes}}
    return replace(words, scenes=scenes, manifest=manifest)


def _text(file: Path | Traversable) -> str:
    with file.open("rb") as opened:
        try:
            return read_bounded(opened, MAX_BYTES)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None


def _predicate(name: str, **given: Any) -> Predicate:
    params = {param: Param(**each) for param, each in given.pop("params", {}).items()}
    excludes = tuple(given.pop("excludes", ()))
    return Predicate(name, args=tuple(given.pop("args")), params=params, excludes=excludes, **given)


class UnknownSimulatorError(ValueError):
    """There is no simulator of this name; says which there are."""


def simulators() -> list[str]:
    """Names of the simulators with a vocabulary: structrl's own, and those that were registered.

    Raises:
        ValueError: if the user's list of registered simulators cannot be read.
    """
    return sorted({*_shipped(), *registered()})


@cache
def _shipped() -> frozenset[str]:
    folders = files("structrl.sims").iterdir()
    return frozenset(each.name for each in folders if (each / "vocabulary.json").is_file())


def load_vocabulary(sim: str) -> Vocabulary:
    """The vocabulary of a simulator. That of a registered one is read again when its file changes.

    Raises:
        UnknownSimulatorError: there is none of this name.
        ValueError: the file of a registered one has mistakes or is gone, or the list of registered ones is broken.
    """
    if sim in _shipped():
        return _load_shipped(sim)
    known = registered()
    if sim not in known:
        raise UnknownSimulatorError(f"no simulator '{sim}'; there are: {', '.join(simulators()) or 'none'}")
    path = Path(known[sim].vocabulary)
    try:
        words = _load_file(path, path.stat().st_mtime_ns, _changed(path.parent / FILE))
    except OSError as error:
        again = f"`structrl sims register {sim} ...` with the file's new place"
        raise ValueError(f"{path}: {error.strerror}; it is the vocabulary of '{sim}': {again}") from None
    if words.sim != sim:
        raise ValueError(f"{path}: it is the vocabulary of '{words.sim}', and registered for '{sim}'")
    return words


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@cache
def _load_shipped(sim: str) -> Vocabulary:
    folder = files("structrl.sims") / sim
    return read_vocabulary(folder / "vocabulary.json", folder / FILE)


@lru_cache(maxsize=64)
def _load_file(path: Path, changed: int, manifest_changed: int) -> Vocabulary:
    return read_vocabulary(path, path.parent / FILE)
