"""Simulators that live outside structrl: a name, the class that implements the contract, and a vocabulary file.

`structrl sims register` keeps them for the user in `$XDG_CONFIG_HOME/structrl/simulators.json` (`~/.config` where the
variable is not set). Reading it imports no simulator.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from structrl.sims.vocabulary_check import shape


@dataclass(frozen=True)
class Registration:
    """`module` is `package.module:Class`; `vocabulary` is the absolute path of a JSON file.

    `python` is the absolute path of the interpreter that has the module, "" for the one that runs structrl.
    """

    module: str
    vocabulary: str
    python: str = ""


def registrations_file() -> Path:
    """Where registrations are kept."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # The specification says that a relative path there is to be ignored.
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.config"), "structrl", "simulators.json")


def registered() -> dict[str, Registration]:
    """The registered simulators by name.

    Raises:
        ValueError: for a file that cannot be read, or is not what `save` writes; names it.
    """
    file = registrations_file()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    try:
        data = json.loads(text)
        problems = list(shape(data, Mapping[str, Registration], "simulators"))
    except (json.JSONDecodeError, RecursionError) as error:
        problems = [str(error)]
    if problems:
        raise ValueError(f"{file}: no list of simulators ({problems[0]}); repair or delete it")
    return {name: Registration(**given) for name, given in data.items()}


def save(simulators: dict[str, Registration]) -> None:
    """Write the list of registered simulators; a reader sees the old one or the new one, never half of it."""
    file = registrations_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: asdict(each) for name, each in sorted(simulators.items())}, indent=1)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_text(text + "\n", encoding="utf-8")
    fresh.replace(file)
