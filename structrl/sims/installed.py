"""Which Python a simulator runs in: this one, the one that `structrl sims install` made, or a registered one."""

import hashlib
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from structrl.sims.registrations import registered

STAMP = "structrl.json"  # written into an environment when it is complete


def requirements(name: str) -> Any:
    """The pinned, hashed requirements of one of structrl's simulators that needs a Python of its own, else None."""
    file = files("structrl.sims") / name / "requirements.txt"
    return file if file.is_file() else None


def installable() -> list[str]:
    """The simulators that `structrl sims install` can install."""
    return sorted(each.name for each in files("structrl.sims").iterdir() if (each / "requirements.txt").is_file())


def fingerprint(source: Any) -> str:
    """SHA-256 of a requirements file."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def environment(name: str) -> Path:
    """Where `structrl sims install NAME` puts the simulator's Python."""
    home = os.environ.get("XDG_DATA_HOME", "")
    # The specification says that a relative path there is to be ignored.
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.local/share"), "structrl", "sims", name)


def status(name: str) -> str:
    """ "installed", "not installed", or "outdated" (made from other requirements than structrl's present ones)."""
    try:
        stamp = json.loads((environment(name) / STAMP).read_text())
    except (OSError, ValueError):
        return "not installed"
    return "installed" if stamp.get("requirements") == fingerprint(requirements(name)) else "outdated"


def own_python(name: str) -> str | None:
    """The interpreter that simulator `name` needs, None if it runs in this one.

    Raises:
        FileNotFoundError: it has to be installed first; says how.
        ValueError: the list of registered simulators cannot be read.
    """
    if requirements(name) is None:
        own = registered().get(name)
        return own.python or None if own else None
    found = status(name)
    if found != "installed":
        raise FileNotFoundError(
            f"simulator '{name}' needs a Python of its own, which is {found} ({environment(name)}): `structrl sims "
            f"install {name}` makes it; or give an interpreter that has its packages as env.python"
        )
    return str(environment(name) / "bin" / "python")
