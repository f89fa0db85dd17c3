"""The text before it is parsed: what is refused outright, where the comments are, and which brackets are open."""

import re
import unicodedata
from typing import NamedTuple

from structrl.lang.diagnostics import Diagnostic, TaskError
from structrl.lang.tree import Span

MAX_CHARACTERS = 1_000_000
MAX_NESTING = 100  # brackets inside brackets, and operators inside operators

_PIECES = re.compile(r'"(?:[^"\\\n]|\\["\\])*"|#[^\n]*')
_INVISIBLE = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C, 0x2028, 0x2029}
_WRITE = {
    **dict.fromkeys("“”„‟«»″", 'write "straight quotes"'),
    **dict.fromkeys("‘’‚‛′", 'text is written in "straight double quotes"'),
    **dict.fromkeys("→⇒➔⟶", "order is written with `then`"),
    **dict.fromkeys("–—−", "write a plain hyphen, -"),
    **dict.fromkeys("；", "write ;"),
    **dict.fromkeys("，、", "write a plain comma"),
    **dict.fromkeys("（）", "write plain parentheses"),
    **dict.fromkeys("∧", "write `and`"),
    **dict.fromkeys("∨", "write `or`"),
    **dict.fromkeys("¬", "write `not`"),
    **dict.fromkeys("°", "write the unit as `deg`"),
    **dict.fromkeys("\u00a0\u2007\u202f\u3000\u200b\u2009", "replace it by a plain space"),
}


class Comment(NamedTuple):
    """A comment with its `#`, and where it stands."""

    span: Span
    text: str


def place(text: str, start: int, end: int) -> Span:
    """The span [start, end) with its line and column."""
    return Span(start, end, text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start))


def comments(text: str) -> list[Comment]:
    """All comments, in order."""
    return [
        Comment(place(text, m.start(), m.start() + len(m[0].rstrip())), m[0].rstrip())
        for m in _PIECES.finditer(text)
        if m[0].startswith("#")
    ]


def code_only(text: str) -> str:
    """The text with the insides of strings and all comments blanked, of the same length."""

    def blank(match: re.Match[str]) -> str:
        piece = match[0]
        return f'"{"_" * (len(piece) - 2)}"' if piece.startswith('"') else " " * len(piece)

    return _PIECES.sub(blank, text)


def open_brackets(code: str) -> list[int]:
    """Offsets of the `(` and `group <` that are still open at the end of `code`, outermost first."""
    stack: list[int] = []
    for match in re.finditer(r"[()<>]", code):
        if match[0] in "(<":
            stack.append(match.start())
        elif stack:
            stack.pop()
    return stack


def refuse(text: str, path: str) -> None:
    """Stop what must not reach the parser.

    Raises:
        TaskError: above `MAX_CHARACTERS` or `MAX_NESTING` brackets, for control and invisible characters anywhere, and
            for characters outside ASCII other than in strings and comments.
    """
    if len(text) > MAX_CHARACTERS:
        message = f"{len(text):,} characters; a task file has at most {MAX_CHARACTERS:,}"
        raise TaskError([Diagnostic("T003", message, Span(0, 1, 1, 1))], text[:200], path)
    code = code_only(text)
    found = [_character(text, i) for i, char in enumerate(text) if _forbidden(text, i, char)]
    found += [_character(text, m.start()) for m in re.finditer(r"[^\x00-\x7f]", code) if not _forbidden(code, *_at(m))]
    if found:
        raise TaskError(sorted(found, key=lambda item: item.span)[:10], text, path)
    depth = 0
    for match in re.finditer(r"[()<>]", code):
        depth += 1 if match[0] in "(<" else -1
        if depth > MAX_NESTING:
            span = place(text, match.start(), match.end())
            help_ = "name the inner parts with `define`"
            raise TaskError([Diagnostic("T003", f"more than {MAX_NESTING} open brackets", span, help_)], text, path)


def _at(match: re.Match[str]) -> tuple[int, str]:
    return match.start(), match[0]


def _forbidden(text: str, index: int, char: str) -> bool:
    if char == "\r":
        return text[index + 1 : index + 2] != "\n"
    return (char < " " and char not in "\t\n") or char == "\x7f" or ord(char) in _INVISIBLE


def _character(text: str, index: int) -> Diagnostic:
    char = text[index]
    name = unicodedata.name(char, "control character").lower()
    shown = f"'{char}' " if char.isprintable() else ""
    help_ = _WRITE.get(char, "remove it" if _forbidden(text, index, char) else None)
    if char == "\r":
        name, help_ = "carriage return without a line feed", "end lines with LF or CR LF"
    if help_ is None:
        help_ = "names, numbers and signs are ASCII; other characters belong in comments and strings"
    return Diagnostic(
        "T002", f"{shown}({name}, U+{ord(char):04X}) is not allowed here", place(text, index, index + 1), help_
    )
