"""The text before it is parsed: what is refused outright, where the comments are, and which brackets are open."""

import re
import unicodedata
from itertools import islice
from typing import NamedTuple

from structrl.lang.diagnostics import Diagnostic, TaskError
from structrl.lang.tree import Span

MAX_CHARACTERS = 1_000_000
MAX_TOKENS = 10_000  # words, signs and comments; the largest plan needs a fifth
MAX_WORD = 100  # characters of a name or a number
MAX_STRING = 2_000  # characters between quotes
MAX_NESTING = 100  # brackets inside brackets, and operators inside operators

# Possessive (`*+`): at a string that is not closed `*` would try, and store, every shorter one. It is a piece too, or
# the search would begin anew at each escaped quote inside.
_PIECES = re.compile(r'"(?:[^"\\\n]|\\["\\])*+("?)|#[^\n]*')
_TOKENS = re.compile(r"#|[A-Za-z0-9_]+|[^\sA-Za-z0-9_]")
# Control characters (but tab and line ends), and those that change the direction of text or end lines unseen.
_FORBIDDEN = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
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
    found, line, passed = [], 1, 0
    for match in _PIECES.finditer(text):
        if match[0].startswith("#"):
            line, passed = line + text.count("\n", passed, match.start()), match.start()
            note = match[0].rstrip()
            col = match.start() - text.rfind("\n", 0, match.start())
            found.append(Comment(Span(match.start(), match.start() + len(note), line, col), note))
    return found


def code_only(text: str, comment: str = " ") -> str:
    """The text with the insides of strings and all comments blanked, of the same length.

    `comment`: the character that a comment then begins with.
    """

    def blank(match: re.Match[str]) -> str:
        piece = match[0]
        if piece.startswith('"'):
            return f'"{"_" * (len(piece) - 2)}"' if match[1] else piece
        return comment + " " * (len(piece) - 1)

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
        TaskError: above `MAX_CHARACTERS`, `MAX_TOKENS`, `MAX_WORD`, `MAX_STRING` or `MAX_NESTING` brackets, for control
            and invisible characters anywhere, and for characters outside ASCII other than in strings and comments.
    """
    if len(text) > MAX_CHARACTERS:
        message = f"{len(text):,} characters; a task file has at most {MAX_CHARACTERS:,}"
        raise TaskError([Diagnostic("T003", message, Span(0, 1, 1, 1))], text[:200], path)
    code = code_only(text, comment="#")
    odd = [m.start() for m in islice(_FORBIDDEN.finditer(text), 10)]
    foreign = (m.start() for m in re.finditer(r"[^\x00-\x7f]", code) if not _FORBIDDEN.match(m[0]))
    found = [_character(text, index) for index in sorted([*odd, *islice(foreign, 10)])[:10]]
    if found:
        raise TaskError(found, text, path)
    too_large = _too_large(code)
    if too_large:
        start, message, help_ = too_large
        raise TaskError([Diagnostic("T003", message, place(text, start, start + 1), help_)], text, path)


def _too_large(code: str) -> tuple[int, str, str | None] | None:
    """The offset where a bound is passed, what to say, and help."""
    depth = 0
    for count, match in enumerate(_TOKENS.finditer(code)):
        token = match[0]
        if count >= MAX_TOKENS:
            return match.start(), f"more than {MAX_TOKENS:,} words, signs and comments", "split the task"
        if len(token) > MAX_WORD:
            if code[match.start() - 1 : match.start()] != '"':
                return match.start(), f"a word of more than {MAX_WORD} characters", None
            if len(token) > MAX_STRING:
                return match.start(), f"a text of more than {MAX_STRING:,} characters", None
        depth += (token in ("(", "<")) - (token in (")", ">"))
        if depth > MAX_NESTING:
            return match.start(), f"more than {MAX_NESTING} open brackets", "name the inner parts with `define`"
    return None


def _character(text: str, index: int) -> Diagnostic:
    char = text[index]
    name = unicodedata.name(char, "control character").lower()
    shown = f"'{char}' " if char.isprintable() else ""
    plain = unicodedata.normalize("NFKD", char)[:1]  # the letter without its accent
    write = f"write `{plain}`: " if plain.isascii() and plain.isalnum() else ""
    rule = "names, numbers and signs are ASCII; other characters belong in comments and strings"
    help_ = _WRITE.get(char, write + rule)
    if _FORBIDDEN.match(char):
        help_ = "remove it"
    if char == "\r":
        name, help_ = "carriage return without a line feed", "end lines with LF or CR LF"
    span = place(text, index, index + 1)
    return Diagnostic("T002", f"{shown}({name}, U+{ord(char):04X}) is not allowed here", span, help_)
