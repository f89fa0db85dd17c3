"""Every input ends in a task or in diagnostics, whatever its size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structrl.lang.check import check
from structrl.lang.diagnostics import TaskError
from structrl.lang.format import format_source
from structrl.lang.parser import parse
from structrl.task import parse_task

PIECES = [
    "group",
    "<",
    ">",
    "then",
    ";",
    ",",
    "(",
    ")",
    "a(x)",
    "b(y) ",
    "each x in",
    "(a, b):",
    "not ",
    "newly ",
    "and",
    "for 3 steps",
    "2 steps of",
    "at least 1 of",
    "@ 3",
    "as l",
    "after l",
    "worth 2",
    '"t"',
    "plan",
    "success",
    "define f(x) =",
    "f(b)",
    'let a = "b"',
    "sim s",
    "horizon 9 steps",
    "task t",
    "#c\n",
    "in",
    "5cm",
    "x",
    "é",
    "\x00",
    "'",
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join) | st.text(max_size=20))
def test_any_text_ends_in_a_task_or_in_diagnostics(text):
    try:
        parsed = parse(text)
    except TaskError as error:
        (first, *_) = error.diagnostics
        assert first.message and str(error).startswith(f"<string>:{first.span.line}:{first.span.col}: error[")
        return
    checked = check(parsed, "<string>")
    assert (checked.task is None) == any(item.severity == "error" for item in checked.diagnostics)
    if not parsed.diagnostics:
        format_source(text)


def code(text: str) -> str:
    with pytest.raises(TaskError) as error:
        parse_task(text)
    assert len(str(error.value)) < 2000
    return error.value.diagnostics[0].code


def test_size_and_nesting():
    assert code("a(x)" + " " * 1_000_000) == "T003"
    assert code("a(x) then " * 7000 + "a(x)") == "T003"
    assert code("(" * 5000 + "a(x)" + ")" * 5000) == "T003"
    assert code("group <" * 5000) == "T003"
    assert code("not " * 5000 + "a(x)") == "T003"
    assert code("each x in (a): " * 5000 + "a(x)") == "T003"
    assert code("a(x)" + " for 3 steps" * 5000) == "T003"
    parse_task("(" * 90 + "a(x)" + ")" * 90)
    parse_task("not " * 100 + "a(x)")


def test_expansion():
    bomb = "define f0() = a() and b()\n"
    bomb += "".join(f"define f{i}() = f{i - 1}() and f{i - 1}()\n" for i in range(1, 40))
    assert code(bomb + "plan f39()") == "T003"
    assert code("plan " + " then ".join(f"a{i}()" for i in range(201))) == "T003"
    chain = "define f0() = a()\n" + "".join(f"define f{i}() = not f{i - 1}()\n" for i in range(1, 400))
    assert code(chain + "plan f399()") == "T003"
    assert len(parse_task("plan " + " then ".join(f"a{i}()" for i in range(200))).subtasks) == 200


def test_characters():
    assert code('command "a\u202eb" plan a(x)') == "T002"
    assert code("a(x) # \u2066") == "T002"
    assert code("a(x)\rthen b(x)") == "T002"
    assert code("a(ä)") == "T002"
    assert code("a(x)\u00a0then b(x)") == "T002"
    assert parse_task('command "Grüße, 日本" plan a(x) # é').command == "Grüße, 日本"


def test_numbers():
    assert code(f"a(x) @ {'9' * 90}") == "T034"
    assert code(f"a(x) @ {'9' * 5000}") == "T003"
    assert code("a(x) @ 1e999") == "T034"
