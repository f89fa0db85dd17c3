"""Every independent syntax error is reported once, at its place, and nothing else is."""

from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structrl.lang.diagnostics import TaskError
from structrl.lang.parser import parse
from structrl.lang.recovery import MAX_ERRORS, skip
from tests.lang.fuzz import Mutator

GOOD = ["add(apple, box)", "a(x) and not b(y) @ 5", "near(a, b, dist=5cm) as here worth 2", "group < a(x); b(y) >"]
BAD = [
    "add apple box",
    "add(apple box)",
    "a(x) -> b(x)",
    "a(x) && b(x)",
    "a(x), b(x)",
    "a(x) foo",
    "near(a, b) < 5cm",
    "not",
    "a(x) @ 5 parsecs",
    "a-1(x)",
    "a(x) and",
]
LINES = [
    "task one",
    'command "go"',
    "horizon 20 steps",
    'let a = "b"',
    "define f(x) = a(x)",
    "success a(x)",
    "fail a(x)",
]
BAD_LINES = [
    "task 5",
    "command go",
    "horizon 20",
    "let a = b",
    "define f(x) a(x)",
    "success a(x) -> b(x)",
    "fail not",
    'sim t(scene="x" y=3)',
]


def errors(text: str) -> list[int]:
    """Offsets of what is reported, all of it about the grammar."""
    try:
        parse(text)
    except TaskError as error:
        assert {each.code for each in error.diagnostics} == {"T001"}, str(error)
        return [each.span.start for each in error.diagnostics]
    return []


@settings(deadline=None)
@given(st.lists(st.sampled_from(GOOD) | st.sampled_from(BAD), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_members_of_a_plan(members, grouped, bare):
    joint = ";\n  " if grouped else "\n  then "
    text = ("" if bare else "task t\nplan ") + (f"group < {joint.join(members)} >" if grouped else joint.join(members))
    if not bare:
        text += "\nsuccess a(x)\n"
    places, at = [], 0
    for member in members:
        at = text.index(member, at)
        if member in BAD:
            places.append((at, at + len(member) + len(joint)))
        at += len(member)
    found = errors(text)
    assert len(found) == min(len(places), MAX_ERRORS)
    assert all(start <= offset <= end for offset, (start, end) in zip(found, places, strict=False))


@settings(deadline=None)
@given(st.lists(st.sampled_from(LINES) | st.sampled_from(BAD_LINES), min_size=1, max_size=8))
def test_lines_of_a_file(lines):
    lines = [*lines, "plan a(x)"]
    numbers = [i for i, line in enumerate(lines) if line in BAD_LINES]
    text = "\n".join(lines)
    found = errors(text)
    starts = [sum(len(line) + 1 for line in lines[:i]) for i in range(len(lines))]
    # What a line lacks may only be noticed at the first word of the next.
    assert [bisect_left(starts, offset) - 1 if offset else 0 for offset in found] == numbers


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("group < a(x); b(y)", 1),
        ("group < a(x); b(y\nthen c(z)", 1),
        ("plan group < a(x); b(y)\nsuccess c x\n", 2),
        ("plan (a(x) then b y) then c z\nfail d w\n", 2),  # which members a parenthesis breaks is not guessed
        ("// note\nplan a(x)\n", 1),
        ("plan group { a(x); b(y) } then c(z)\n", 1),
        ("a(x) then", 1),
        ("plan a(x) then\nfail d w\n", 2),
        ("then then then", 1),
        ("", 0),
        (" then ".join(["a x"] * 30), MAX_ERRORS),
    ],
)
def test_nothing_is_made_up(text, count):
    assert len(errors(text)) == count


def test_long_files_report_fewer():
    """To parse again and again what is long would take longer than is allowed."""
    assert len(errors(" then ".join(["a x"] * 30) + " " * 30_000)) == 3
    assert len(errors(" then ".join(["a x"] * 30) + " " * 900_000)) == 1


def test_blanking_keeps_every_place():
    mutator, blanked = Mutator(7), 0
    for _ in range(150):
        text = mutator.draw("tokens").decode()
        try:
            parse(text)
        except TaskError as error:
            rest = skip(text, error.diagnostics[0])
            if rest is not None:
                blanked += 1
                assert len(rest) == len(text) and rest.count("\n") == text.count("\n")
            starts = [each.span.start for each in error.diagnostics]
            assert starts == sorted(set(starts)) or error.diagnostics[0].code == "T002"
    assert blanked > 30
