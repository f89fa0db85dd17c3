import re

import pytest
from lark import Lark

from structrl import resources
from structrl.lang import tree
from structrl.lang.parser import cache_file, grammar, keywords, parse
from structrl.lang.tree import Call, Group, PlanItem, Then, Word
from tests.lang.toy import ANCHOR

TEXT = (resources.folder("grammar") / "task.lark").read_text(encoding="utf-8")


def call(name: str, *args: str) -> Call:
    return Call(Word(name), tuple(map(Word, args)))


def expression(text: str) -> tree.Expr:
    document = parse(text).document
    assert document.bare
    item = document.items[0]
    assert isinstance(item, PlanItem)
    return item.body


def test_the_grammar_has_no_conflict_and_no_colliding_terminals():
    pytest.importorskip("interegular")
    Lark(TEXT, parser="lalr", strict=True)


def test_the_grammar_is_built_once():
    assert grammar() is grammar()


def test_character_classes_are_ascii():
    rules = re.sub(r"//.*", "", TEXT)
    assert not re.search(r"\\[dws]", rules) and rules.isascii()


def test_anchor():
    members = (call("add", "apple", "box"), call("add", "drink", "box"))
    assert expression(ANCHOR) == Then((Group(members), call("close", "box")))


def test_spans_point_into_the_text():
    text = "# first\n  group < a(x);\n  b(y) > then c(z)"
    body = expression(text)
    assert isinstance(body, Then)
    group, last = body.members
    assert text[body.span.start : body.span.end] == text[10:]
    assert text[group.span.start : group.span.end] == "group < a(x);\n  b(y) >" and group.span[2:] == (2, 3)
    assert text[last.span.start : last.span.end] == "c(z)" and last.span[2:] == (3, 15)


@pytest.mark.parametrize(
    ("loose", "tight"),
    [
        ("a() then b() then c()", "a() then b() then c()"),
        ("a() or b() and not c()", "a() or (b() and (not c()))"),
        ("not a() and b()", "(not a()) and b()"),
        ("newly a() for 3 steps", "newly (a() for 3 steps)"),
        ("a() for 3 steps and b()", "(a() for 3 steps) and b()"),
        ("5 steps of a() and b()", "(5 steps of a()) and b()"),
        ("a() or b() @ 3", "(a() or b()) @ 3"),
        ("each x in (a, b): a(x) @ 3 then b()", "(each x in (a, b): (a(x) @ 3)) then b()"),
        ("group < a(); b() then c(); >", "group < a(); (b() then c()) >"),
        ("group<group<a();b()>>", "group < group < a(); b() > >"),
        ("((a()))", "a()"),
        ("a(x,)", "a(x)"),
    ],
)
def test_ladder(loose: str, tight: str):
    assert parse(loose).document == parse(tight).document


def test_parentheses_that_change_the_tree_are_kept():
    assert expression("a() then (b() then c())") != expression("a() then b() then c()")


@pytest.mark.parametrize("text", ["in(apple, box)", "at(apple)", "thenx(a)", "group_(a)", "a(x) then for_(y)"])
def test_words_that_only_begin_like_keywords(text: str):
    parse(text)


def test_numbers_and_units():
    call_ = expression('near(a, "b c", dist=5cm, angle = 10 deg, part=50%, n=-3, x=1.5e-3)')
    assert isinstance(call_, Call)
    given = [(each.name.text, each.value.value, each.value.unit) for each in call_.keywords]  # type: ignore[union-attr]
    assert given == [("dist", 5, "cm"), ("angle", 10, "deg"), ("part", 50, "%"), ("n", -3, None), ("x", 0.0015, None)]
    assert call_.args == (Word("a"), tree.Text("b c"))


def test_keywords_come_from_the_grammar():
    assert {"then", "group", "plan", "newly", "in"} <= keywords()
    assert "NAME" not in keywords() and "at_least" not in keywords()


def test_windows_line_ends_tabs_and_byte_order_mark():
    assert parse("\ufeffplan\r\n\ta(x)\r\n").document == parse("plan a(x)").document


def test_the_tables_are_kept_and_a_broken_copy_is_built_anew(tmp_path, monkeypatch):
    """Without a place to keep them, with a kept one, with a broken one: the same parser."""
    text = "plan group < a(x) @ 3; not b(y) > then at least 1 of (c(z), d(x, k=3cm))"
    trees = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for content in (None, None, b"broken", b""):
        if content is not None:
            cache_file().write_bytes(content)
        grammar.cache_clear()
        trees.append(grammar().parse(text))
        assert cache_file().stat().st_size > 10_000
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    grammar.cache_clear()
    trees.append(grammar().parse(text))
    grammar.cache_clear()
    assert all(each == trees[0] for each in trees)
