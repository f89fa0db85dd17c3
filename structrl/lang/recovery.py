"""After a syntax error: blank what it is in, and parse on, so that independent errors are all reported.

What is blanked keeps its length, so that places stay true: the member of a plan between `then`, `;` and the signs of
its group, or else the whole line of the file (from its first word to the next such word that begins a line).
"""

import re
from itertools import pairwise

from structrl.lang.diagnostics import Diagnostic
from structrl.lang.source import code_only
from structrl.lang.syntax_errors import LINES

MAX_ERRORS = 10
MAX_WORK = 100_000  # characters that are parsed again, so that a long file stays within its second
_STARTS = re.compile(rf"^[ \t]*({'|'.join(LINES)})(?![A-Za-z0-9_])", re.MULTILINE)
_MEMBER = "a()"
_ENDS = re.compile(r"(?<![A-Za-z0-9_])(?:then(?![A-Za-z0-9_])|group\s*<)|;|(?<![-=])>")


def skip(text: str, found: Diagnostic, whole: bool = False) -> str | None:
    """The text without what `found` is in (`whole`: without its line); None where that cannot be told from the rest."""
    code = code_only(text)
    offset = min(found.span.start, len(code.rstrip()) - 1)
    starts = [match.start(1) for match in _STARTS.finditer(code)]
    # A word that begins a line is wrong only where the line before lacks something.
    begin = max((start for start in starts if start < offset), default=0)
    end = min((start for start in starts if start > begin), default=len(code))
    line, bare = code[begin:end], not starts
    if not whole and (bare or line.startswith("plan")):
        member = _member(line, offset - begin)
        if member is not None:
            start, stop = begin + member[0], begin + member[1]
            return text[:start] + _MEMBER + _blank(text[start + len(_MEMBER) : stop]) + text[stop:]
    return None if bare else text[:begin] + _blank(text[begin:end]) + text[end:]


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _member(plan: str, offset: int) -> tuple[int, int] | None:
    """The stretch of a plan around `offset` in which one subtask stands; None where brackets cross its ends."""
    first = re.match(r"\s*(?:plan(?![A-Za-z0-9_]))?", plan)
    cuts = [(0, first.end() if first else 0)]  # what stands between members
    groups = 0
    for match in _ENDS.finditer(plan, cuts[0][1]):
        if match[0] == ">" and not groups:
            continue  # a comparison
        groups += {">": -1, ";": 0, "then": 0}.get(match[0], 1)
        cuts.append(match.span())
    cuts.append((len(plan), len(plan)))
    for (_, start), (end, behind) in pairwise(cuts):
        if start <= offset < max(end + 1, behind):  # a separator is wrong where the member before it lacks something
            inside = plan[start:end]
            start += len(inside) - len(inside.lstrip())
            inside = inside.strip()
            short = len(inside.partition("\n")[0]) < len(_MEMBER)
            if short or inside.count("(") != inside.count(")") or re.search(r"[\[\]{}]", inside):
                return None
            return start, start + len(inside)
    return None
