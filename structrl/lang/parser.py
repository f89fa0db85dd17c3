"""Text to syntax tree. The grammar is built once per process."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import lark.lexer
from lark import Lark, Tree
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


@cache
def grammar() -> Lark:
    """The parser of grammar/task.lark."""
    text = (resources.folder("grammar") / "task.lark").read_text(encoding="utf-8")
    # Where interegular is installed lark compares all terminals at every start, which triples the time; a test does it
    # once, with strict=True.
    installed, lark.lexer.has_interegular = lark.lexer.has_interegular, False
    try:
        return Lark(text, parser="lalr", propagate_positions=True, maybe_placeholders=False)
    finally:
        lark.lexer.has_interegular = installed


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
            meta = level[0].meta
            span = Span(meta.start_pos, meta.start_pos + 1, meta.line, meta.column)
            help_ = "name the inner parts with `define`"
            raise TaskError([Diagnostic("T003", "operators are nested too deeply", span, help_)], text, path)
        level = [child for node in level for child in node.children if isinstance(child, Tree)]
