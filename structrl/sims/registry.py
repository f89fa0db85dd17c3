"""Simulators by name. Modules are imported on first use (torch-free).

`structrl.sims.installed` says which of them need a Python of their own.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from structrl.hints import hint
from structrl.lang.spec import TaskSpec
from structrl.sims.base import Simulator
from structrl.sims.registrations import registered

BUILTIN = {
    "libero": "structrl.sims.libero:LiberoSimulator",
    "tabletop": "structrl.sims.tabletop:TabletopSimulator",
}


def target_of(name: str) -> str:
    """`package.module:Class` of simulator `name`: one of structrl's own, or one made known by `structrl sims register`.

    Raises:
        ValueError: there is no such simulator.
    """
    if name in BUILTIN:
        return BUILTIN[name]
    own = registered()
    if name not in own:
        raise ValueError(f"unknown simulator '{name}'{hint(name, [*BUILTIN, *own])}")
    return own[name].module


def load_class(name: str, target: str) -> type[Simulator]:
    """The class `target` of simulator `name`.

    Raises:
        ValueError: it cannot be imported or is no `Simulator`.
    """
    module, attribute = target.split(":")
    where = f"simulator '{name}' is registered as {target}"
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the user's module needs
        raise ValueError(
            f"{where}, and there is no module '{error.name}': install it for {sys.executable}, or set PYTHONPATH"
        ) from None
    except AttributeError:
        raise ValueError(f"{where}, and the module has no '{attribute}'") from None
    if not (isinstance(found, type) and issubclass(found, Simulator)):
        raise ValueError(f"{where}, which is no class of structrl.sims.base.Simulator")
    return found


def simulator_class(name: str) -> type[Simulator]:
    """The class of simulator `name`, imported here; raises what `target_of` and `load_class` raise."""
    return load_class(name, target_of(name))


def construct(
    name: str, cls: type[Simulator], tasks: Sequence[TaskSpec], num_envs: int, config: Mapping[str, Any]
) -> Simulator:
    """Construct a simulator with the arguments that task files give (all the same) and those of the config.

    What a task file gives and the constructor does not take (the scene of a task, say) the simulator reads from the
    task; the config may repeat it, but not change it.

    Raises:
        ValueError: arguments that contradict each other, or that the constructor does not know; the message suggests
            the nearest name.
    """
    known = list(inspect.signature(cls).parameters)[2:]
    merged = dict(config)
    for spec in tasks:
        for key, value in spec.sim_args.items():
            if merged.setdefault(key, value) != value and (key in config or key in known):
                where = "the config's `sim`" if key in config else "another task"
                raise ValueError(
                    f"{spec.path}: {name}({key}={value!r}) contradicts {key}={merged[key]!r} of {where}; "
                    "say it in one place"
                )
    in_tasks = {key for spec in tasks for key in spec.sim_args}
    arguments = {key: value for key, value in merged.items() if key in known or key not in in_tasks}
    for argument in arguments:
        if argument not in known:
            raise ValueError(f"simulator '{name}' has no argument '{argument}'{hint(argument, known)}")
    return cls(tasks, num_envs, **arguments)  # type: ignore[call-arg]


def make_simulator(name: str, tasks: Sequence[TaskSpec], num_envs: int, **arguments: Any) -> Simulator:
    """Construct simulator `name` in this process, see `construct`.

    Args:
        name: `tabletop`, or a registered one.
        tasks: the task specs, in the order of their row numbers.
        num_envs: E.
        arguments: keyword arguments of the simulator's constructor, besides those in the task files.
    """
    return construct(name, simulator_class(name), tasks, num_envs, arguments)
