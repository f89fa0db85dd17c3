"""What is wrong with a config, in a few lines: jsonargparse's messages without their nesting, and did-you-mean."""

import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import yaml

# Lines of jsonargparse that tell a user nothing: the union of "a module" and None, and the whole value once more.
_NOISE = re.compile(r"Does not validate against any|Subtypes:|Errors:|Expected a <class 'NoneType'>|Given value")
_UNKNOWN = re.compile(r"option '([^']+)'|Option '([^']+)'|unrecognized arguments: --(?:[\w]+\.)*(\w+)")
_OWN = ("config", "resume", "help", "print_config")


class UsageError(Exception):
    """A mistake on the command line or in a config; its text is all that the user needs to see."""


def explain(error: Exception, argv: list[str]) -> str:
    """The message of an error that parsing or instantiating a config raised, shortened, with the closest known key."""
    lines = [line.strip().removeprefix("- ") for line in str(error).splitlines()]
    lines = [re.sub(r"\. Got value: Namespace\(.*", "", line) for line in lines if line and not _NOISE.search(line)]
    text = "\n  ".join(lines)
    if match := _UNKNOWN.search(text):
        unknown, known = match[1] or match[2] or match[3], known_keys(argv)
        text += hint(unknown, known) or hint(unknown.split(".")[0], known)
    return text


def check_overrides(argv: list[str], config: dict[str, Any]) -> None:
    """Every `--key` of the command line is a key of the resolved config.

    jsonargparse takes any unambiguous beginning of a key: `--model.ppo.epoch 3` would silently mean `epochs`.

    Raises:
        UsageError: a key that is not there, with the closest one that is.
    """
    keys = set(_paths(config))
    for argument in argv:
        if not argument.startswith("--"):
            continue
        key = argument[2:].split("=")[0].rstrip("+").replace(".init_args", "")
        if key.split(".")[0] not in _OWN and key not in keys:
            raise UsageError(f"unknown option '--{key}'{hint(f'--{key}', {f'--{k}' for k in keys})}")


def spell_nulls(argv: list[str]) -> list[str]:
    """`--a.b.c=null` as `--a.b={"c": null}`: jsonargparse 4.53 reads the former as the text "None"."""
    out: list[str] = []
    for argument in argv:
        if argument == "null" and out and out[-1].startswith("--") and "=" not in out[-1]:
            argument = f"{out.pop()}=null"
        key, _, value = argument.partition("=")
        parent, _, leaf = key.rpartition(".")
        out.append(f'{parent}={{"{leaf}": null}}' if value == "null" and "." in parent else argument)
    return out


def hint(word: str, known: typing.Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def known_keys(argv: list[str]) -> set[str]:
    """Names that a config of these classes may contain: those of Lightning, and of every class_path it names."""
    found = {"trainer", "model", "data", "seed_everything", "threads", "ckpt_path", "class_path", "init_args"}
    found |= set(inspect.signature(pl.Trainer).parameters)
    for name, value in pairwise(argv):
        if name in ("--config", "-c") and Path(value).is_file():
            for path in _class_paths(yaml.safe_load(Path(value).read_text())):
                module, _, attribute = path.rpartition(".")
                try:
                    found |= set(_parameters(getattr(import_module(module), attribute)))
                except (ImportError, AttributeError, ValueError):
                    continue  # a class that does not exist is reported as such
    return found


def _class_paths(config: Any) -> Iterator[str]:
    if isinstance(config, dict):
        if isinstance(config.get("class_path"), str):
            yield config["class_path"]
        for value in config.values():
            yield from _class_paths(value)
    elif isinstance(config, list):
        for value in config:
            yield from _class_paths(value)


def _parameters(cls: Any) -> Iterator[str]:
    """Names of a callable's parameters, and of the fields of those that are dataclasses."""
    hints = typing.get_type_hints(cls.__init__ if inspect.isclass(cls) else cls)
    for name in inspect.signature(cls).parameters:
        yield name
        if dataclasses.is_dataclass(hints.get(name)):
            yield from _parameters(hints[name])


def _paths(config: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of everything in a config, as the command line spells them: without `init_args`."""
    if isinstance(config, dict):
        for name, value in config.items():
            path = prefix if name == "init_args" else f"{prefix}.{name}" if prefix else str(name)
            yield path
            yield from _paths(value, path)
