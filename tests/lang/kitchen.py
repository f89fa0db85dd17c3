"""The words of the manual's long tasks, for their test; without scenes."""

import json

from structrl.sims.vocabulary import parse_vocabulary

_ONE = ["clean", "closed", "filled", "grasped", "on_floor", "open", "pressed", "running", "stopped", "toasted"]
_ONE += ["was_pressed"]
_TWO = ["held_by", "in", "inserted", "left_of", "on", "right_of", "under"]
_EXCLUDES = {"open": ["closed"], "running": ["stopped"]}
_VERBS = {
    "add": "in",
    "close": "closed",
    "grasp": "grasped",
    "open": "open",
    "place": "on",
    "press": "pressed",
    "turn_off": "stopped",
    "turn_on": "running",
}


def _args(predicate: str) -> list[str]:
    return ["any"] if predicate in _ONE else ["any", "any"]


KITCHEN = parse_vocabulary(
    json.dumps(
        {
            "sim": "kitchen",
            "control_hz": 20,
            "has_success": False,
            "predicates": {
                name: {
                    "args": _args(name),
                    "meaning": name,
                    "pulse": name == "pressed",
                    "excludes": _EXCLUDES.get(name, []),
                }
                for name in [*_ONE, *_TWO]
            },
            "verbs": {
                verb: {"args": _args(predicate), "predicate": predicate, "meaning": verb}
                for verb, predicate in _VERBS.items()
            },
        }
    )
)
