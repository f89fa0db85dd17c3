"""Which Python a simulator runs in: this one, the one that `structrl sims install` made, or a registered one."""

import os
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from structrl.sims.registrations import registered


def requirements(name: str) -> Traversable | None:
    """The pinned, hashed requirements of one of structrl's simulators that needs a Python of its own, else None."""
    file = files("structrl.sims") / name / "requirements.txt"
    return file if file.is_file() else None


def environment(name: str) -> Path:
    """Where `structrl sims install NAME` puts the simulator's Python."""
    home = os.environ.get("XDG_DATA_HOME", "")
    # The specification says that a relative path there is to be ignored.
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.local/share"), "structrl", "sims", name)


def own_python(name: str) -> str | None:
    """The interpreter that simulator `name` needs, None if it runs in this one.

    Raises:
        FileNotFoundError: it has to be installed first; says how.
        ValueError: the list of registered simulators cannot be read.
    """
    if requirements(name) is None:
        own = registered().get(name)
        return own.python or None if own else None
    python = environment(name) / "bin" / "python"
    if not python.is_file():
        raise FileNotFoundError(
            f"simulator '{name}' needs a Python of its own, which is not installed ({python}): structrl sims install "
            f"{name} makes it; or give an interpreter that has it as env.python"
        )
    return str(python)
