"""Which entities a simulator's scenes have (torch-free): `manifest.json` beside its vocabulary.

Simulators with many scenes keep them there, so that tasks are checked without starting one. Scenes with the same
entities share a list:

    {"sim": "kitchen", "source": "where it is from", "entities": {"a": {"cup_1": ["object"]}},
     "scenes": {"wash/0": {"entities": "a", "title": "wash_the_cup", "success": "in(cup_1, sink_1)"}}}
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from structrl.hints import closest
from structrl.sims.vocabulary_check import shape

FILE = "manifest.json"


@dataclass(frozen=True)
class Scene:
    """`entities` names one of the manifest's lists, `title` is the simulator's own name of the scene or task.

    `success` is the simulator's own check as a condition of the task language ("" where that is not known).
    """

    entities: str
    title: str = ""
    success: str = ""


@dataclass(frozen=True)
class Manifest:
    """The key of a scene holds the values of the vocabulary's `scene_args`, joined by `/`.

    `partial`: the simulator has more scenes than these; tasks in others are checked as far as that goes.
    """

    sim: str
    source: str
    entities: Mapping[str, Mapping[str, tuple[str, ...]]]
    scenes: Mapping[str, Scene]
    partial: bool = False

    def entities_of(self, scene: str) -> Mapping[str, tuple[str, ...]]:
        """Entities of a scene with their kinds."""
        return self.entities[self.scenes[scene].entities]


def parse_manifest(text: str, path: str = "<string>") -> Manifest:
    """Read the JSON text of a manifest.

    Raises:
        ValueError: with everything that is wrong with it; names `path`.
    """
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    problems = list(shape(data, Manifest, "")) or list(_sense(data))
    if problems:
        raise ValueError(f"{path}: " + "\n  ".join(["", *problems] if problems[1:] else problems))
    entities = {
        name: {entity: tuple(kinds) for entity, kinds in each.items()} for name, each in data.pop("entities").items()
    }
    scenes = {key: Scene(**each) for key, each in data.pop("scenes").items()}
    return Manifest(entities=entities, scenes=scenes, **data)


def _sense(data: dict[str, Any]) -> Iterator[str]:
    for key, scene in data["scenes"].items():
        if scene["entities"] not in data["entities"]:
            close = closest(scene["entities"], data["entities"])
            question = f"; did you mean '{close}'?" if close else ""
            yield f"scenes.{key}.entities: there is no list '{scene['entities']}'{question}"
