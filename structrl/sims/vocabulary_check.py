"""What is wrong with a vocabulary file, all at once, each with its place: `predicates.in.args: ...`."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_origin

from structrl.hints import closest, hint

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OPS = ("<", "<=", ">", ">=", "==")
PARAM_UNITS = ("m", "rad", "s", "steps", "1")


def shape(value: Any, kind: Any, place: str) -> Iterator[str]:
    """Where parsed JSON differs from a dataclass of texts, numbers, truths, tuples of texts and mappings.

    A field `name` is not expected: it is the key under which the object stands; nor is one that is `derived`.
    """
    if is_dataclass(kind):
        yield from _object(value, kind, place)
    elif get_origin(kind) is Mapping:
        if not isinstance(value, dict):
            yield f'{place}: {{"NAME": ...}} is expected, found {_shown(value)}'
            return
        for key, each in value.items():
            yield from shape(each, get_args(kind)[1], f"{place}.{key}")
    elif get_origin(kind) is tuple:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            yield f"{place}: a list of texts is expected, found {_shown(value)}"
    else:
        word = {str: "a text", bool: "true or false", float: "a number"}[kind]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number if kind is float else isinstance(value, kind)):
            yield f"{place}: {word} is expected, found {_shown(value)}"


def _object(value: Any, kind: Any, place: str) -> Iterator[str]:
    within = f"{place}: " if place else ""
    if not isinstance(value, dict):
        yield f"{within}an object {{...}} is expected, found {_shown(value)}"
        return
    known = {field.name: field for field in fields(kind) if field.name != "name" and not field.metadata.get("derived")}
    for key in value:
        if key not in known:
            yield f"{within}unknown key '{key[:100]}'{hint(key[:100], known)}"
    for key, field in known.items():
        if key in value:
            yield from shape(value[key], field.type, f"{place}.{key}" if place else key)
        elif field.default is MISSING and field.default_factory is MISSING:
            yield f"{within}'{key}' is missing"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def sense(data: dict[str, Any]) -> Iterator[str]:
    """What cannot be meant, in a vocabulary of the right shape."""
    if not 0 < data["control_hz"] < math.inf:
        yield f"control_hz: {data['control_hz']} steps per second"
    if not data.get("scene_args", ["scene"]):
        yield "scene_args: at least one argument of the simulator says which scene it is"
    predicates, verbs = data["predicates"], data["verbs"]
    for table in ("predicates", "verbs"):
        for word in data[table]:
            if not NAME.fullmatch(word):
                yield f"{table}.{word}: a word holds letters, digits and _, and begins with no digit"
    for word, predicate in predicates.items():
        if predicate.get("op", "") not in ("", *OPS):
            yield f"predicates.{word}.op: '{predicate['op']}' is none of {' '.join(OPS)}"
        for name, param in predicate.get("params", {}).items():
            if param["unit"] not in PARAM_UNITS:
                units = ", ".join(PARAM_UNITS)
                yield f"predicates.{word}.params.{name}.unit: '{param['unit']}' is none of the SI units {units}"
        for other in predicate.get("excludes", ()):
            if other not in predicates or len(predicates[other]["args"]) != len(predicate["args"]):
                yield f"'{word}' excludes '{other}', no predicate of as many arguments"
    for word, verb in verbs.items():
        meant = predicates.get(verb["predicate"])
        if meant is None:
            close = closest(verb["predicate"], predicates)
            question = f"; did you mean '{close}'?" if close else ""
            yield f"verb '{word}' stands for the unknown predicate '{verb['predicate']}'{question}"
        elif len(meant["args"]) != len(verb["args"]):
            yield f"verb '{word}' has {len(verb['args'])} arguments, '{verb['predicate']}' {len(meant['args'])}"
        if word in predicates and word != verb["predicate"]:
            yield f"'{word}' is a verb for '{verb['predicate']}' and also a predicate"
