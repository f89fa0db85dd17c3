"""One kind of message for everything that can be wrong with a task file, and its three output formats."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from structrl.hints import closest
from structrl.lang.tree import Span

# Codes are stable: they may be searched for, and are listed in grammar/README.md.
CODES = {
    "T001": "the text does not follow the grammar",
    "T002": "a character that is not allowed",
    "T003": "too large, too deeply nested, or too much expansion",
    "T010": "unknown verb or predicate",
    "T011": "wrong number of arguments",
    "T012": "unknown object",
    "T013": "an argument of the wrong kind",
    "T014": "unknown or repeated keyword argument",
    "T015": "a missing or wrong unit",
    "T016": "unknown simulator, or wrong arguments for it",
    "T017": "names that could not be checked",
    "T020": "a label given twice",
    "T021": "unknown label",
    "T022": "subtasks that wait for each other",
    "T023": "a definition that uses itself",
    "T024": "a name that is taken, or a word of the language",
    "T025": "a name that is never used",
    "T030": "a plan where a condition belongs",
    "T031": "`newly` in the wrong place",
    "T032": "`for` that needs parentheses",
    "T033": "an annotation that does not belong here",
    "T034": "a number out of range",
    "T040": "no plan",
    "T041": "a line given twice",
    "T042": "no `success`, and the simulator has none",
    "T043": "no duration",
    "T044": "seconds without a simulator",
    "T045": "no horizon",
    "T046": "a horizon too short for the durations",
    "T050": "a condition that can never be true",
    "T051": "the same subtask twice",
    "T052": "subtasks that exclude each other, without an order",
    "T053": "a subtask that completes together with the one before",
    "T054": "a last subtask that success does not ask for",
    "T055": "a subtask that the end of the episode comes before",
}
SEVERITIES = ("error", "warning", "note")  # a note says what was not checked
FORMATS = ("text", "json", "github")
_WINDOW = 140  # columns of a source line shown; longer ones are cut around the span


@dataclass(frozen=True)
class Diagnostic:
    """A message with its place in the source. `help` says what to do next."""

    code: str
    message: str
    span: Span
    help: str | None = None
    severity: str = "error"


class TaskError(ValueError):
    """A task file with errors: all of them in `diagnostics`, rendered with source lines by `str()`."""

    def __init__(self, diagnostics: Sequence[Diagnostic], source: str, path: str) -> None:
        self.diagnostics = list(diagnostics)
        self.source = source
        self.path = path
        super().__init__(render(self.diagnostics, source, path))


def suggest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The question "did you mean `apple`?" for the closest of `known`, None if nothing is close."""
    close = closest(word, known, cutoff)
    return f"did you mean `{close}`?" if close else None


def listing(known: Iterable[str], limit: int = 12, ordered: bool = False) -> str:
    """A short comma-separated list, sorted if it is not `ordered` already."""
    names = list(known) if ordered else sorted(known)
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def render(diagnostics: Iterable[Diagnostic], source: str, path: str) -> str:
    """`file:line:col: error[T012]: ...`, the source line, carets under the span, and help, for each."""
    return "\n".join(_render(each, source, path) for each in diagnostics)


def _render(item: Diagnostic, source: str, path: str) -> str:
    column = item.span.col - 1
    first = item.span.start - column  # of the line; splitting a long source for each message would be slow
    text = source[first : (source.find("\n", first) + 1 or len(source) + 1) - 1].rstrip("\r")
    width = max(1, min(item.span.end - item.span.start, len(text) - column))
    if len(text) > _WINDOW:
        first = max(0, column - _WINDOW // 3)
        text, column = text[first : first + _WINDOW], column - first
        width = min(width, max(1, len(text) - column))
    # What would move the carets, or the terminal's cursor, is shown as a space.
    text = "".join(char if char.isprintable() else " " for char in text)
    number = str(item.span.line)
    parts = [
        f"{path}:{item.span.line}:{item.span.col}: {item.severity}[{item.code}]: {item.message}",
        f"{number} | {text}".rstrip(),
        f"{' ' * len(number)} | {' ' * column}{'^' * width}",
    ]
    if item.help:
        parts.append(f"{' ' * len(number)} = help: {item.help}")
    return "\n".join(parts)


def to_json(diagnostics: Iterable[tuple[str, str, Diagnostic]]) -> str:
    """A JSON list of objects; items are (path, source, diagnostic). Lines and columns are 1-based, ends exclusive."""
    return json.dumps([_record(*each) for each in diagnostics], indent=1)


def to_github(diagnostics: Iterable[tuple[str, str, Diagnostic]]) -> str:
    """Workflow commands that GitHub shows beside the changed lines; items are (path, source, diagnostic)."""
    lines = []
    for path, source, item in diagnostics:
        place = _record(path, source, item)
        ends = f"endLine={place['end_line']},endColumn={place['end_column']}"
        where = f"file={_escape(path, ':,')},line={place['line']},col={place['column']},{ends},title={item.code}"
        message = item.message + (f" (help: {item.help})" if item.help else "")
        severity = "notice" if item.severity == "note" else item.severity
        lines.append(f"::{severity} {where}::{_escape(message)}")
    return "\n".join(lines)


def _record(path: str, source: str, item: Diagnostic) -> dict[str, object]:
    inside = source[item.span.start : item.span.end]
    end_column = len(inside) - inside.rfind("\n") if "\n" in inside else item.span.col + len(inside)
    return {
        "file": path,
        "line": item.span.line,
        "column": item.span.col,
        "end_line": item.span.line + inside.count("\n"),
        "end_column": end_column,
        "severity": item.severity,
        "code": item.code,
        "message": item.message,
        "help": item.help,
    }


def _escape(text: str, more: str = "") -> str:
    for char in "%\r\n" + more:
        text = text.replace(char, f"%{ord(char):02X}")
    return text
