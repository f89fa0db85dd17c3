"""Finds `grammar/`, `tasks/` and `configs/`: inside the wheel when installed, at the top of a source checkout."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable  # Python 3.10, in which workers may run, has it elsewhere


def folder(name: str) -> "Traversable":
    """The folder `name` (`grammar`, `tasks` or `configs`).

    Raises:
        FileNotFoundError: if neither an installed copy nor a source checkout has it.
    """
    installed = files("structrl") / name
    if installed.is_dir():
        return installed
    checkout = Path(__file__).resolve().parent.parent / name
    if checkout.is_dir():
        return checkout
    raise FileNotFoundError(
        f"structrl's folder '{name}' is neither at {installed} nor at {checkout}; reinstall structrl"
    )
