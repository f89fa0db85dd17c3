"""What to say when the parser stops: the offending token and what the grammar would have accepted decide.

The rules are tried in order; each looks at a `Stop` and returns an `Answer` or None.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import NamedTuple

from lark.exceptions import UnexpectedInput, UnexpectedToken

from structrl.lang.diagnostics import Diagnostic, suggest
from structrl.lang.source import MAX_WORD, code_only, open_brackets, place
from structrl.lang.tree import Span

LINES = ("task", "command", "sim", "horizon", "let", "define", "success", "fail", "plan")
_GROUP = "a group is written `group < a; b >`"
_JOIN = "`then` orders two subtasks, `;` separates members of a group, `and` and `or` combine conditions"
_LETTERS = ascii_letters + digits + "_"
_EXAMPLE = "for example `closed(box)`"
_WORDS = ("then", "and", "or", "for", "as", "after", "worth", "not", "group", "each", "of")
_FOREIGN = {
    "->": "order is written with `then`",
    "=>": "order is written with `then`",
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`",
    "~": "write `not`",
    "'": 'text is written in "double quotes"',
    "[": _GROUP,
    "{": _GROUP,
    "/": "comments begin with #",
    ".": "a number begins with a digit, and names hold letters, digits and _",
    "-": "order is written with `then`; a number may begin with -",
}
_NAMES = {
    "NAME": "a name",
    "STRING": 'a "text"',
    "INT": "a whole number",
    "NUMBER": "a number",
    "QUANTITY": "a number with a unit",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LESSTHAN": "`<`",
    "MORETHAN": "`>`",
    "COMMA": "`,`",
    "SEMICOLON": "`;`",
    "COLON": "`:`",
    "EQUAL": "`=`",
    "AT": "`@`",
    "_AT_LEAST": "`at least`",
    "$END": "the end of the file",
}
_STARTS = {"NAME", "_GROUP", "_EACH", "_NOT", "_NEWLY", "_AT_LEAST", "LPAR", "QUANTITY"}  # of an expression


class Answer(NamedTuple):
    """What the user reads. `earlier`: the word before is the one to point at."""

    message: str
    help: str | None
    earlier: bool = False


@dataclass(frozen=True)
class Stop:
    """Where the parser stopped: token type ("" where not even a token), text from there, and what it would accept."""

    kind: str
    word: str
    rest: str
    accepts: frozenset[str]
    before: str  # the word or sign before
    opener: str  # innermost open bracket: "<", "(" or ""
    fresh: bool  # the word before stands first on its line
    prior: str  # the code before

    @property
    def complete(self) -> bool:
        """A whole condition stands before."""
        return bool({"_THEN", "_AND"} & self.accepts) or (self.before in (")", ">") and "NAME" not in self.accepts)

    @property
    def planned(self) -> bool:
        """What stands before belongs to a plan."""
        words = re.findall(rf"(?<!\w)({'|'.join(LINES)})(?=\s)", self.prior)
        return not words or words[-1] == "plan"

    @property
    def wanting(self) -> bool:
        """A condition must come here."""
        return "_GROUP" in self.accepts and "_PLAN" not in self.accepts


def explain(text: str, error: UnexpectedInput) -> Diagnostic:
    """The diagnostic for lark's error."""
    code = code_only(text)
    offset = len(text) if error.pos_in_stream is None or error.pos_in_stream < 0 else error.pos_in_stream
    kind, word, accepts = "", "", frozenset[str]()
    if isinstance(error, UnexpectedToken):
        kind, accepts = error.token.type, frozenset(error.accepts or error.expected)
        word = "" if kind == "$END" else str(error.token)
        offset = len(text) if kind == "$END" else offset
    else:
        accepts = frozenset(getattr(error, "allowed", None) or ())
    stack = open_brackets(code[:offset])
    end = len(code[:offset].rstrip())  # of the word or sign before
    start = max(0, min(len(code[:end].rstrip(_LETTERS)), end - 1))
    before = code[start:end]
    fresh = bool(before) and not code[code.rfind("\n", 0, start) + 1 : start].strip()
    stop = Stop(kind, word, text[offset:], accepts, before, code[stack[-1]] if stack else "", fresh, code[:offset])

    in_arguments = stop.opener == "(" and {"RPAR", "COMMA"} <= accepts
    if stack and (kind == "$END" or kind[1:].lower() in LINES or (kind.startswith("_") and in_arguments)):
        # The bracket that was never closed is more telling than the place where that was noticed.
        span = place(text, stack[-1], stack[-1] + 1)
        if stop.opener == "<":
            return Diagnostic("T001", "this group is not closed", span, "end it with `>`")
        return Diagnostic("T001", "this parenthesis is not closed", span, "end it with `)`")
    for rule in _RULES:
        answer = rule(stop)
        if answer is not None:
            span = _span(text, code, offset, word)
            if answer.earlier and before:
                span = place(text, start, end)
            return Diagnostic("T001", answer.message, span, answer.help)
    raise AssertionError("the last rule answers everything")


def _span(text: str, code: str, offset: int, word: str) -> Span:
    if not word and offset >= len(code.rstrip()):  # the end: point just behind the last thing written
        end = len(code.rstrip())
        return place(text, end, end + 1)
    return place(text, offset, offset + max(1, len(word)))


def _shown(stop: Stop) -> str:
    return "the end of the file" if stop.kind == "$END" else f"`{stop.word or stop.rest[:1]}`"


def _string(stop: Stop) -> Answer | None:
    if not stop.kind and stop.rest.startswith('"'):
        line = stop.rest.split("\n", 1)[0]
        if "\\" in line:
            help_ = 'a backslash stands only before " and before another backslash'
            return Answer("this text has a backslash that is not allowed", help_)
        return Answer("this text is not closed on its line", 'end it with " on the same line')
    if "STRING" in stop.accepts and "NAME" not in stop.accepts and stop.kind not in ("", "STRING"):
        help_ = f'put it in double quotes: "{stop.word}"' if stop.kind == "NAME" else "put it in double quotes"
        return Answer(f'a "text" is expected, found {_shown(stop)}', help_)
    return None


def _hyphen(stop: Stop) -> Answer | None:
    name = re.search(r"[A-Za-z_]\w*$", stop.prior[-MAX_WORD:])
    rest = re.match(r"(?:-\w+)+", stop.rest)
    if name and rest and stop.before not in _WORDS:
        whole = name[0] + rest[0]
        help_ = f'write `{whole.replace("-", "_")}`; if the simulator names an object so, write "{whole}"'
        return Answer(f"`-` in the name `{whole}`: names hold letters, digits and _", help_)
    return None


def _foreign(stop: Stop) -> Answer | None:
    if stop.kind in ("", "EQUAL"):
        for sign, help_ in _FOREIGN.items():
            if stop.rest.startswith(sign):
                width = 2 if stop.rest[1:2] in (">", "&", "|", "/") else 1
                return Answer(f"`{stop.rest[:width]}` is not part of the language", help_)
        number = re.match(r"[0-9][A-Za-z0-9_.]*", stop.rest)
        if not stop.kind and number:
            return Answer(f"`{number[0]}` is not a number", "write 61, 0.5 or, with a unit, 5cm")
    return None


def _comparison(stop: Stop) -> Answer | None:
    if stop.rest.startswith("==") and stop.complete:
        return Answer("`==`: there are no comparisons", "a condition stands by itself; `not a` is its opposite")
    if stop.kind in ("LESSTHAN", "MORETHAN", "EQUAL") and stop.complete:
        help_ = "a threshold is an argument with a unit: `near(a, b, dist=5cm)`"
        return Answer(f"{_shown(stop)}: there are no comparisons", help_)
    return None


def _sign(stop: Stop) -> Answer | None:
    """A colon or equals sign where other languages have one."""
    if stop.kind in ("COLON", "EQUAL") and stop.before in LINES:
        return Answer(f"{_shown(stop)} after `{stop.before}`", "leave it out")
    if stop.kind == "COLON" and stop.accepts == {"LPAR"}:
        help_ = f"a label stands behind its subtask: `add(apple, box) as {stop.before}`"
        return Answer(f"`:` after `{stop.before}`", help_)
    return None


def _separator(stop: Stop) -> Answer | None:
    if stop.kind == "COMMA" and stop.complete:
        if stop.opener == "<":
            return Answer("`,` between the members of a group", "separate them by `;`")
        return Answer("`,` between subtasks", "order them with `then`, or write `group < a; b >` for any order")
    if stop.kind == "SEMICOLON" and stop.opener == "(":
        return Answer("`;` inside parentheses", "separate arguments by `,`; members of a group stand in `< >`")
    if stop.kind == "SEMICOLON" and stop.opener == "":
        if not stop.rest[1:].split("#")[0].strip() or not stop.complete:
            return Answer("`;` outside a group", "leave it out: no sign ends a line")
        return Answer("`;` outside a group", "order subtasks with `then`, or write `group < a; b >` for any order")
    if stop.opener == "(" and {"RPAR", "COMMA"} <= stop.accepts and stop.kind in ("NAME", "STRING"):
        return Answer(f"`,` is missing before {_shown(stop)}", "arguments are separated by commas")
    return None


def _line(stop: Stop) -> Answer | None:
    if "_PLAN" in stop.accepts and stop.kind in _STARTS | {""}:
        close = suggest(stop.word, LINES) if stop.kind == "NAME" else None
        if stop.complete and (stop.planned or stop.word.lower() in _WORDS) and not (close and not _is_call(stop)):
            return _word(stop)
        if close:
            return Answer(f"`{stop.word}` is not a line of a task file", close)
        return Answer("an expression without a line of its own", "write `plan` before it")
    if stop.before and stop.fresh and stop.accepts == {"LPAR"} and stop.kind != "_IN":
        close = suggest(stop.before, LINES)
        if close:
            return Answer(f"`{stop.before}` is not a line of a task file", close, earlier=True)
    if stop.kind[1:].lower() in LINES and stop.complete:
        return Answer(f"`{stop.word}` after a plan without the word `plan`", "write `plan` before the plan")
    if stop.kind[1:].lower() in LINES and stop.wanting:
        return Answer(f"`{stop.before}` without anything after it", "a condition is missing")
    return None


def _unit(stop: Stop) -> Answer | None:
    numeric = re.fullmatch(r"[0-9]+", stop.before) is not None
    if stop.kind in ("INT", "NUMBER") and stop.complete and "AT" in stop.accepts:
        return Answer(f"`{stop.word}` without `@`", f"the duration of a subtask is written `@ {stop.word}`")
    if stop.kind == "NAME" and numeric and not _is_call(stop):
        return Answer(f"unknown unit `{stop.word}`", "the units are mm cm m deg rad s steps %")
    if stop.kind in ("INT", "NUMBER") and "QUANTITY" in stop.accepts and stop.kind not in stop.accepts:
        return Answer("a unit is missing", f"write `{stop.word} steps`, or a time in seconds: `3.0s`")
    return None


def _is_call(stop: Stop) -> bool:
    return re.match(r"[A-Za-z_]\w*\s*\(", stop.rest) is not None


def _call(stop: Stop) -> Answer | None:
    if stop.accepts == {"LPAR"} and re.search(r"(?<!\w)each\s+\w+\s+in\s*$", stop.prior):
        return Answer("the values of `each` stand in parentheses", "write `each x in (apple, drink): ...`")
    if stop.before == "group" and stop.accepts == {"LESSTHAN"}:
        return Answer(f"`<` is expected after `group`, found {_shown(stop)}", _GROUP)
    if stop.accepts == {"LPAR"} and re.fullmatch(r"[A-Za-z_]\w*", stop.before):
        if stop.before in _WORDS:
            return Answer(f"a condition is missing before `{stop.before}`", _EXAMPLE, earlier=True)
        names = re.match(rf"(?:(?!(?:{'|'.join(_WORDS)})\b)[A-Za-z_]\w*\s*)*", stop.rest)
        inside = ", ".join(names[0].split()[:5]) if names and stop.kind == "NAME" else ""
        help_ = f"arguments stand in parentheses: `{stop.before}({inside or '...'})`"
        return Answer(f"`{stop.before}` without arguments", help_, earlier=True)
    return None


def _word(stop: Stop) -> Answer | None:
    if stop.kind == "NAME" and stop.complete and not _is_call(stop):
        close = stop.word.lower() if stop.word.lower() in _WORDS else None
        help_ = (
            f"did you mean `{close}`? words of the language are lower case"
            if close
            else suggest(stop.word, _WORDS, 0.75)
        )
        return Answer(f"`{stop.word}` does not continue a condition", help_ or _JOIN)
    if stop.kind in _STARTS and stop.complete:
        if stop.opener == "<":
            help_ = "members of a group are separated by `;`; what must come in order is joined by `then`"
            return Answer(f"`;` or `then` is missing before {_shown(stop)}", help_)
        if stop.opener == "":
            return Answer(f"`then` is missing before {_shown(stop)}", _JOIN)
        return Answer(f"something is missing before {_shown(stop)}", _JOIN)
    return None


def _missing(stop: Stop) -> Answer | None:
    if stop.wanting and stop.before in _WORDS and (stop.kind == "$END" or stop.kind[1:].lower() in LINES):
        return Answer(f"nothing follows `{stop.before}`", f"leave it out, or go on, {_EXAMPLE}", earlier=True)
    if stop.wanting:
        return Answer(f"a condition is missing before {_shown(stop)}", _EXAMPLE)
    if stop.kind == "RPAR" and stop.opener == "":
        return Answer("`)` without `(`", "remove it, or open a parenthesis")
    if stop.kind == "MORETHAN" and stop.opener == "(":
        return Answer("`>` while a parenthesis is open", "close it with `)` first")
    if stop.kind == "RPAR" and stop.opener == "<":
        return Answer("`)` while a group is open", "close the group with `>`")
    return None


def _anything(stop: Stop) -> Answer | None:
    names = sorted(_NAMES.get(each, f"`{each[1:].lower()}`") for each in stop.accepts)
    if len(names) == 1:
        help_ = "write `at least 2 of (a, b, c)`" if "_OF" in stop.accepts else None
        return Answer(f"{names[0]} is missing before {_shown(stop)}", help_)
    return Answer(f"{_shown(stop)} is not expected here", f"expected: {', '.join(names)}" if names else None)


_RULES: tuple[Callable[[Stop], Answer | None], ...] = (
    *(_sign, _string, _hyphen, _foreign, _comparison, _separator, _line, _unit, _call, _word, _missing),
    _anything,
)
