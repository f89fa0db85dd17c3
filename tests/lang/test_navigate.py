"""What editors ask, on offsets: `|` marks the cursor."""

import pytest

from structrl.lang.navigate import WORDS, definition, hover, outline, proposals
from structrl.lang.parser import keywords

FILE = """\
# the box
task lunch
sim tabletop(scene="lunch")
let apple = "apple_1"
define packed(x) = in(x, box) and not grasped(x)
plan group < add(apple, box) as first; packed(drink) > then close(box) after first
"""


def cursor(text: str) -> tuple[str, int]:
    before, after = text.split("|")
    return before + after, len(before)


def words(text: str, kind: str | None = None) -> set[str]:
    return {each.text for each in proposals(*cursor(text)) if kind in (None, each.kind)}


def test_every_keyword_is_explained():
    assert set(WORDS) == keywords() | {"at least"}


@pytest.mark.parametrize(
    ("marked", "target"),
    [
        ("add(app|le, box)", "apple ="),
        ("add(apple|, box)", "apple ="),  # just behind the word
        ("pac|ked(drink)", "packed(x)"),
        ("after fi|rst", "first;"),
        ("let app|le", "apple ="),
    ],
)
def test_definition(marked, target):
    before, after = marked.split("|")
    text = FILE
    place = definition(text, text.index(before + after) + len(before))
    assert place is not None and text[place.start :].startswith(target)


@pytest.mark.parametrize("marked", ["# the b|ox", "clo|se(box)", "th|en close"])
def test_no_definition(marked):
    before, after = marked.split("|")
    assert definition(FILE, FILE.index(before + after) + len(before)) is None


def test_definition_of_a_label_that_nobody_wrote():
    text, offset = cursor("group < a(x); b(y) after a_|x >")
    assert definition(text, offset) == (8, 12)


def test_definition_while_the_text_is_broken():
    text, offset = cursor('let apple = "apple_1"\nplan add(app|le, then')
    assert definition(text, offset) == (4, 9)


@pytest.mark.parametrize(
    ("marked", "parts"),
    [
        ("ad|d(apple", ["**add(object, container)**", "tests `in`", "< 0 m"]),
        ("i|n(x, box)", ["**in(object, container)**", "inside the container"]),
        ("grasp|ed(x)", ["both fingers touch", "gap= sets the threshold (default 0.001 m)"]),
        ("the|n close", ["every subtask of `a` before"]),
        ("(apple|, box)", ['`apple` is the entity `"apple_1"`: ', "object"]),
        ("pack|ed(drink)", ["`packed(x)`"]),
        ("after fir|st", ["subtask `first`: `add(apple, box)`"]),
    ],
)
def test_hover(marked, parts):
    before, after = marked.split("|")
    found = hover(FILE, FILE.index(before + after) + len(before))
    assert found is not None and all(part in found[0] for part in parts)


def test_hover_on_nothing():
    assert hover(FILE, 4) is None and hover("", 0) is None and hover("  ", 1) is None


def test_completion_of_conditions():
    head = 'sim tabletop(scene="lunch")\ndefine packed(x) = in(x, box)\n'
    found = words(head + "plan |")
    assert {"add", "closed", "packed", "group", "not", "each", "at least"} <= found
    assert not found & {"then", "box_1", "sim", "as"}
    assert "add" in words(head + "plan group < close(box); a|")
    assert {"then", "and", "or", "as", "worth", "after"} <= words(head + "plan add(apple, box) |")
    assert "add" not in words(head + "plan add(apple, box) |")
    assert "add" in words("plan )( |\n" + head), "where the text before is broken everything is offered"


def test_completion_of_arguments_and_names():
    head = 'sim tabletop(scene="lunch")\nlet snack = "apple_1"\n'
    assert words(head + "plan add(|") >= {"snack", "apple_1", "box_1"}
    assert "add" not in words(head + "plan add(|") and "snack" in words(head + "plan each x in (|")
    assert words('sim tabletop(scene="lunch")\nlet a = "|', "entity") >= {"apple_1", "box_1"}
    assert words("sim |") == {"libero", "tabletop"} and "tabletop" in words("sim tab|")
    assert words("sim tabletop(scene=|") == {'"lunch"'} and words('sim tabletop(scene="|') == {"lunch"}
    assert '"libero_10"' in words("sim libero(suite=|") and len(words("sim libero(suite=|")) == 5
    assert words('sim libero(suite="libero_10", task=|') == set("0123456789")
    assert words("sim libero(task=|", "scene") == set(), "which tasks there are depends on the suite"
    assert words("sim libero(horizon=|") == set()
    assert "moka_pot_2" in words('sim libero(suite="libero_10", task=8) plan grasp(|', "entity")
    assert "moka_pot_2" not in words('sim libero(suite="libero_10", task=0) plan grasp(|', "entity")
    assert {"first", "b_y"} <= words("plan group < a(x) as first; b(y); c(z) after | >", "label")
    assert words("plan ( a(x) as first then b(x) as second after s|, first", "label") == {"first", "second"}
    assert words("plan a(x) as |") == set() and words("# plan |") == set() and words('command "pl|') == set()


def test_completion_at_the_start():
    assert {"task", "sim", "plan", "group"} <= words("|")


def test_outline():
    assert [(name.kind, name.text) for name in outline(FILE).names] == [
        ("let", "apple"),
        ("define", "packed"),
        ("label", "first"),
        ("subtask", "first"),
        ("subtask", "packed_drink"),
        ("subtask", "close_box"),
    ]
    about = outline('sim nowhere\nlet a = "b" plan (')
    assert about.vocabulary is None and [name.text for name in about.names] == ["a"]
