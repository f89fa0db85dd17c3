"""The `sim` line: which simulator, which vocabulary, which scene."""

from typing import Any

from structrl.lang import tree
from structrl.lang.diagnostics import listing, suggest
from structrl.lang.scope import Report
from structrl.lang.tree import Word
from structrl.sims.vocabulary import UnknownSimulatorError, Vocabulary, load_vocabulary, simulators


def find_vocabulary(sim: tree.Sim, report: Report) -> Vocabulary | None:
    """The vocabulary that the line names, None after an error."""
    name = sim.name.text
    try:
        return load_vocabulary(name)
    except UnknownSimulatorError:
        help_ = suggest(name, simulators()) or f"there are: {listing(simulators())}"
        report.error("T016", f"unknown simulator `{name}`", sim.name.span, help_)
    except ValueError as error:  # of one that the user has registered
        report.error("T016", f"the vocabulary of `{name}` cannot be used", sim.name.span, str(error))
    return None


def sim_arguments(sim: tree.Sim | None, report: Report) -> dict[str, Any]:
    """The simulator's arguments by name."""
    args: dict[str, Any] = {}
    for setting in sim.args if sim else ():
        name, value = setting.name.text, setting.value
        if name in args:
            report.error("T016", f"`{name}` is given twice", setting.span)
        match value:
            case tree.Text(text):
                args[name] = text
            case tree.Quantity(number):
                args[name] = number
            case Word("true" | "false"):
                args[name] = value.text == "true"
            case Word(text):
                args[name] = text
                report.error("T016", f"`{text}` is not a value", value.span, f'write {name}="{text}"')
    return args


def find_scene(
    sim: tree.Sim | None, sim_args: dict[str, Any], vocabulary: Vocabulary | None, report: Report
) -> str | None:
    """The key of the scene that the simulator's arguments name; None after an error, and where it is not listed."""
    if sim is None or vocabulary is None or not vocabulary.scenes:
        return None
    values: list[str] = []
    for name in vocabulary.scene_args:
        known = next_values(vocabulary, values)
        value = str(sim_args.get(name))
        if name in sim_args and value not in known and not vocabulary.complete:
            return None
        if name not in sim_args or value not in known:
            _wrong_scene(sim, sim_args, name, known, report)
            return None
        values.append(value)
    return "/".join(values)


def next_values(vocabulary: Vocabulary, values: list[str]) -> list[str]:
    """What the argument behind those with `values` may be in the scenes of a vocabulary, numbers in their order."""
    parts = (key.split("/") for key in vocabulary.scenes)
    found = {part[len(values)] for part in parts if part[: len(values)] == values}
    return sorted(found, key=lambda each: (each.isdigit(), len(each) if each.isdigit() else 0, each))


def _wrong_scene(sim: tree.Sim, sim_args: dict[str, Any], name: str, known: list[str], report: Report) -> None:
    simulator, numbers = sim.name.text, all(each.isdigit() for each in known)
    shown = f"{known[0]} to {known[-1]}" if numbers and len(known) > 2 else listing(known, 12, ordered=True)
    help_ = f"there {'is' if len(known) == 1 else 'are'}: {shown}"
    if name not in sim_args:
        example = f"{name}={known[0]}" if numbers else f'{name}="{known[0]}"'
        message = f"`{simulator}` needs `{name}=`, which says what is in the scene"
        report.error("T016", message, sim.span, f"for example {example}; {help_}")
        return
    span = next(each.value.span for each in sim.args if each.name.text == name)
    question = None if numbers else suggest(str(sim_args[name]), known)
    report.error("T016", f"`{simulator}` has no {name} `{sim_args[name]}`", span, question or help_)
