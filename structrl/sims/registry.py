"""Simulators by name. Modules are imported on first use (torch-free)."""

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from structrl.hints import hint
from structrl.lang.spec import TaskSpec
from structrl.sims.base import Simulator
from structrl.sims.registrations import registered

BUILTIN = {
    "tabletop": "structrl.sims.tabletop:TabletopSimulator",
    "libero": "structrl.sims.libero:LiberoSimulator",
}


def simulator_class(name: str) -> type[Simulator]:
    """The class of simulator `name`: one of structrl's own, or one made known by `structrl sims register`.

    Raises:
        ValueError: there is no such simulator, or a registered one cannot be imported or is no `Simulator`.
    """
    if name in BUILTIN:
        module, attribute = BUILTIN[name].split(":")
        return getattr(import_module(module), attribute)
    own = registered()
    if name not in own:
        raise ValueError(f"unknown simulator '{name}'{hint(name, [*BUILTIN, *own])}")
    module, attribute = own[name].module.split(":")
    where = f"simulator '{name}' is registered as {own[name].module}"
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the user's module needs
        raise ValueError(f"{where}, and there is no module '{error.name}': install it, or set PYTHONPATH") from None
    except AttributeError:
        raise ValueError(f"{where}, and the module has no '{attribute}'") from None
    if not (isinstance(found, type) and issubclass(found, Simulator)):
        raise ValueError(f"{where}, which is no class of structrl.sims.base.Simulator")
    return found


def known_arguments(name: str) -> list[str]:
    """What the constructor of simulator `name` takes besides tasks and number of environments."""
    return list(inspect.signature(simulator_class(name)).parameters)[2:]


def make_simulator(name: str, tasks: Sequence[TaskSpec], num_envs: int, **arguments: Any) -> Simulator:
    """Construct simulator `name` for `tasks` with `num_envs` environments.

    Args:
        name: `tabletop`, or a registered one.
        tasks: the task specs, in the order of their row numbers.
        num_envs: E.
        arguments: keyword arguments of the simulator's constructor.

    Raises:
        ValueError: an unknown simulator or argument; the message suggests the nearest name.
    """
    known = known_arguments(name)
    for argument in arguments:
        if argument not in known:
            raise ValueError(f"simulator '{name}' has no argument '{argument}'{hint(argument, known)}")
    return simulator_class(name)(tasks, num_envs, **arguments)  # type: ignore[call-arg]
