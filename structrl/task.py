"""Task files to `TaskSpec`s: the one door to the language for everything that is not a language tool."""

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO

from structrl import resources
from structrl.hints import closest
from structrl.lang.check import check
from structrl.lang.diagnostics import Diagnostic, TaskError
from structrl.lang.parser import parse
from structrl.lang.source import MAX_CHARACTERS
from structrl.lang.spec import TaskSpec
from structrl.lang.tree import Span
from structrl.sims.vocabulary import Vocabulary


def parse_task(text: str, path: str = "<string>", vocabulary: Vocabulary | None = None) -> TaskSpec:
    """Check and lower a task file or a bare expression. Warnings are for `structrl check`.

    Args:
        text: the file's text.
        path: for messages and for the task's name where the file has none.
        vocabulary: used in place of the one that the `sim` line names.

    Raises:
        TaskError: with every error of the file, each with its place and help.
    """
    parsed = parse(text, path)
    checked = check(parsed, path, vocabulary)
    if checked.task is None:
        raise TaskError([each for each in checked.diagnostics if each.severity == "error"], parsed.text, path)
    return checked.task


def load_task(path_or_name: str | Path) -> TaskSpec:
    """Read a task file: a path, or the name of one that structrl ships, such as `tabletop/pack_lunch`.

    Raises:
        FileNotFoundError: if it is neither; says which shipped name is close.
        TaskError: as `parse_task`.
    """
    path, text = read_task(path_or_name)
    return parse_task(text, path)


def read_task(path_or_name: str | Path) -> tuple[str, str]:
    """The path (for messages) and text of a task file, found as by `load_task`.

    Raises:
        FileNotFoundError: as `load_task`.
        TaskError: for a file that is too long or not UTF-8.
    """
    path = Path(path_or_name)
    if path.is_file():
        with path.open("rb") as file:
            return str(path_or_name), decode(file, str(path_or_name))
    shipped = shipped_tasks()
    name = str(path_or_name)
    if name in shipped:
        with shipped[name].open("rb") as file:
            return str(shipped[name]), decode(file, str(shipped[name]))
    close = closest(name.removesuffix(".task"), shipped)
    hint = f"; did you mean the shipped task '{close}'?" if close else ""
    raise FileNotFoundError(f"no task file '{name}', and no shipped task of that name{hint}")


def shipped_tasks() -> dict[str, Traversable]:
    """The task files inside structrl by name, `tabletop/pack_lunch`."""
    try:
        suites = [suite for suite in resources.folder("tasks").iterdir() if suite.is_dir()]
    except FileNotFoundError:
        return {}
    files = ((suite.name, file) for suite in suites for file in suite.iterdir() if file.name.endswith(".task"))
    return {
        f"{suite}/{file.name.removesuffix('.task')}": file
        for suite, file in sorted(files, key=lambda each: str(each[1]))
    }


def decode(file: IO[bytes], path: str) -> str:
    """The text of an open file. However long it is, no more than `MAX_CHARACTERS` bytes are read.

    Raises:
        TaskError: for a longer file, and for one that is not UTF-8.
    """
    data = file.read(MAX_CHARACTERS + 1)
    if len(data) > MAX_CHARACTERS:
        message = f"more than {MAX_CHARACTERS:,} bytes; a task file has at most as many"
        raise TaskError([Diagnostic("T003", message, Span(0, 1, 1, 1))], data[:200].decode("utf-8", "replace"), path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        span = Span(len(before), len(before) + 1, before.count("\n") + 1, len(before) - before.rfind("\n"))
        message = f"byte {error.start} is not UTF-8"
        raise TaskError([Diagnostic("T002", message, span, "save the file as UTF-8")], before, path) from None
