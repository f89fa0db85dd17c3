"""Text to syntax tree. The grammar is built once per process."""

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lark.lexer
from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from structrl import resources
from structrl.lang.build import build
from structrl.lang.diagnostics import Diagnostic, TaskError
from structrl.lang.source import MAX_NESTING, Comment, comments, refuse
from structrl.lang.syntax_errors import explain
from structrl.lang.tree import Document, Span

# For growth, and because readers would take them for words of the language.
RESERVED = frozenset({"always", "any", "at", "choose", "keeping", "least", "never", "step", "steps", "until", "within"})


@dataclass(frozen=True)
class Parsed:
    """A document with its text (without byte-order mark), its comments, and problems that do not stop the parser."""

    document: Document
    text: str
    comments: list[Comment]
    diagnostics: list[Diagnostic]


def cache_file() -> Path:
    """Where the parser's tables are kept between runs: in `$XDG_CACHE_HOME/structrl`, `~/.cache/structrl` otherwise."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path there is to be ignored.
    folder = Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "structrl")
    return folder / f"task-{lark.__version__}-{sys.version_info.major}.{sys.version_info.minor}.lark"


@cache
def grammar() -> Lark:
    """The parser of grammar/task.lark. Building it takes 0.1 s, reading its tables from `cache_file` a tenth of that.

    lark compares the file with a hash of the grammar, and builds anew where it differs or cannot be read.
    """
    text = (resources.folder("grammar") / "task.lark").read_text(encoding="utf-8")
    # Where interegular is installed lark compares all terminals at every start, which triples the time; a test does it
    # once, with strict=True.
    installed, lark.lexer.has_interegular = lark.lexer.has_interegular, False
    try:
        return Lark(text, parser="lalr", keep_all_tokens=True, maybe_placeholders=False, cache=_tables())
    finally:
        lark.lexer.has_interegular = installed


def _tables() -> str | bool:
    file = cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to only costs the time
        return False
    return str(file)


@cache
def keywords() -> frozenset[str]:
    """The words of the language, taken from the grammar. All but `in` are closed to names and calls."""
    names = (terminal.name for terminal in grammar().terminals)
    return frozenset(name[1:].lower() for name in names if name.startswith("_") and name != "_AT_LEAST")


def parse(text: str, path: str = "<string>") -> Parsed:
    """Parse a whole file or a bare expression.

    Raises:
        TaskError: for text that does not follow the grammar; the first place only.
    """
    text = text.removeprefix("\ufeff")
    refuse(text, path)
    try:
        raw = grammar().parse(text)
    except UnexpectedInput as error:
        raise TaskError([explain(text, error)], text, path) from None
    _bound_depth(raw, text, path)
    document, diagnostics = build(raw)
    return Parsed(document, text, comments(text), diagnostics)


def _bound_depth(raw: Tree[Any], text: str, path: str) -> None:
    """Refuse chains such as `not not not ...` before anything walks the tree by recursion."""
    level, depth = [raw], 0
    while level:
        depth += 1
        if depth > MAX_NESTING + 20:
            first = next(level[0].scan_values(lambda each: isinstance(each, Token)))
            span = Span(first.start_pos, first.start_pos + 1, first.line, first.column)
            help_ = "name the inner parts with `define`"
            raise TaskError([Diagnostic("T003", "operators are nested too deeply", span, help_)], text, path)
        level = [child for node in level for child in node.children if isinstance(child, Tree)]
