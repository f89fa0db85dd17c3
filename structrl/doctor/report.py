"""What a check found, and how a list of findings is printed. The standard library only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        section: the heading under which it stands.
        name: what was looked at.
        level: `ok`, `note` (nothing is wrong, but know it), `warn`, or `error` (something will not work).
        text: what was found, one line.
        remedy: what to do; for `warn` and `error`.
    """

    section: str
    name: str
    level: Literal["ok", "note", "warn", "error"]
    text: str
    remedy: str = ""


def lines(findings: Iterable[Finding]) -> Iterable[str]:
    """The report, line by line as findings come in: a heading per section, remedies indented below their finding."""
    section = None
    for each in findings:
        if each.section != section:
            section = each.section
            yield f"-- {section}"
        yield f"{each.level:<5} {each.name}: {each.text}"
        if each.remedy:
            yield f"      -> {each.remedy}"


def summary(findings: Iterable[Finding]) -> str:
    """`no errors, 1 warning`."""
    levels: list[str] = [each.level for each in findings]

    def count(level: str, word: str) -> str:
        n = levels.count(level)
        return f"{n or 'no'} {word}{'' if n == 1 else 's'}"

    return f"{count('error', 'error')}, {count('warn', 'warning')}"
