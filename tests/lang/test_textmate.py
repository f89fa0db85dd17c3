"""The TextMate grammar knows the same words as grammar/task.lark, and colours the manual's full example right."""

import json
import re
from pathlib import Path

import pytest

from structrl.lang.parser import keywords
from structrl.lang.units import UNITS
from tests.lang.toy import FULL

FOLDER = Path(__file__).parent.parent.parent / "grammar" / "editors" / "vscode"
GRAMMAR = json.loads((FOLDER / "syntaxes" / "task.tmLanguage.json").read_text())


def patterns():
    """(compiled, scope of each group; 0 is the whole match). A string with `begin` and `end` becomes one pattern."""
    for each in GRAMMAR["patterns"]:
        source = each.get("match") or f'{each["begin"]}(?:\\\\.|[^"\\\\])*(?:{each["end"]})'
        scopes = {int(group): inner["name"] for group, inner in each.get("captures", {}).items()}
        yield re.compile(source), scopes or {0: each["name"]}


def colours(line: str) -> list[tuple[str, str]]:
    """(text, scope) of one line, as TextMate does it: the earliest match wins, then the first in the list."""
    found, at = [], 0
    while at < len(line):
        matches = [
            (match.start(), i, match) for i, (regex, _) in enumerate(patterns()) if (match := regex.search(line, at))
        ]
        if not matches:
            break
        _, i, match = min(matches, key=lambda each: each[:2])
        scopes = list(patterns())[i][1]
        found += [
            (match[group], scope.removesuffix(".structrl-task")) for group, scope in scopes.items() if match[group]
        ]
        at = max(match.end(), at + 1)
    return found


def test_every_word_of_the_language_is_a_keyword():
    for word in keywords() - {"in"}:
        assert dict(colours(f" {word} "))[word].startswith("keyword."), word
    assert dict(colours("each x in (a)"))["in"] == "keyword.control"
    assert ("at least", "keyword.operator.word") in colours("at least 2 of (a(), b())")


def test_there_are_no_other_keywords():
    written = set()
    for regex, scopes in patterns():
        if any(scope.startswith("keyword.") and "unit" not in scope for scope in scopes.values()):
            written |= set(
                re.findall(r"(?<![A-Za-z\\\[])[a-z]{2,}", re.sub(r"\[[^]]*\]|\\s\*\(mm.*", "", regex.pattern))
            )
    assert written - {"at", "least"} == keywords()


def test_every_unit_is_coloured():
    for unit in UNITS:
        assert colours(f"5{unit}") == [("5", "constant.numeric"), (unit, "keyword.other.unit")]
    assert colours("240 steps")[1] == ("steps", "keyword.other.unit")


def test_the_full_example():
    for line in FULL.splitlines():
        found = dict(colours(line))
        if line.startswith("#"):
            assert found == {line: "comment.line.number-sign"}
    lines = FULL.splitlines()
    assert colours(lines[1]) == [("task", "keyword.other.line"), ("pack_lunch", "variable.other")]
    assert colours(lines[2])[1] == (lines[2].removeprefix("command "), "string.quoted.double")
    assert ("scene", "variable.parameter") in colours(lines[3]) and ('"lunch"', "string.quoted.double") in colours(
        lines[3]
    )
    assert colours(lines[6])[:3] == [
        ("define", "keyword.other.line"),
        ("packed", "entity.name.function"),
        ("item", "variable.other"),
    ]
    assert ("in", "support.function") in colours(lines[6])  # the predicate, not the word of `each`
    assert ("not", "keyword.operator.word") in colours(lines[6])
    assert ("61", "constant.numeric") in colours(lines[10]) and ("as", "keyword.control") in colours(lines[10])


@pytest.mark.parametrize("word", ["thenceforth", "group_1", "order", "format"])
def test_words_that_only_begin_like_keywords(word):
    assert colours(word) == [(word, "variable.other")]


def test_the_extension_points_to_its_files():
    package = json.loads((FOLDER / "package.json").read_text())
    (language,), (grammar,) = package["contributes"]["languages"], package["contributes"]["grammars"]
    assert language["extensions"] == [".task"] and language["id"] == grammar["language"]
    assert json.loads((FOLDER / language["configuration"]).read_text())["comments"] == {"lineComment": "#"}
    assert (FOLDER / grammar["path"]).is_file() and grammar["scopeName"] == GRAMMAR["scopeName"]
