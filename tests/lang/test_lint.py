import pytest

from structrl.lang.check import check
from structrl.lang.parser import parse
from tests.lang.toy import VOCABULARY

HEAD = 'sim tabletop(scene="lunch") horizon 100 steps '
DRAWER = "open(box) @ 1 then group < add(apple, box) @ 1; add(drink, box) @ 1 > then close(box) @ 1"


def codes(text: str, head: str = HEAD) -> list[str]:
    """Codes of a file's findings and the text that each points at."""
    parsed = parse(head + text)
    found = check(parsed, "t", VOCABULARY if head else None).diagnostics
    return [f"{each.code} {parsed.text[each.span.start : each.span.end]}" for each in found]


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("let a = \"apple_1\" let b = \"drink_1\" success in(a, box) plan add(a, box) @ 1", ["T025 b"]),
        ("define f(x) = in(x, box) success closed(box) plan close(box) @ 1", ["T025 f"]),
        ("success closed(box) plan press(button) @ 60 then close(box) @ 50", ["T046 100 steps"]),
        ("success closed(box) plan open(box) and closed(box) @ 1", ["T050 open(box) and closed(box) @ 1"]),
        ("success closed(box) and open(box) plan close(box) @ 1", ["T050 closed(box) and open(box)"]),
        ("success closed(box) plan group < close(box) @ 1; closed(box) @ 2 >", ["T051 closed(box) @ 2"]),
        ("success closed(box) plan group < open(box) @ 1; grasp(apple) @ 1; close(box) @ 2 > then close(box) @ 1",
         ["T052 close(box) @ 2"]),
        ("success closed(box) plan close(box) @ 1 then not open(box) @ 1", ["T053 not open(box) @ 1"]),
        ("success closed(box) plan group < in(apple, box) and closed(box) @ 1; in(drink, box) and closed(box) @ 1 > "
         "then close(box) @ 1", ["T053 close(box) @ 1"]),
        ("success in(apple, box) plan add(apple, box) @ 1 then close(box) @ 1", ["T055 close(box) @ 1"]),
        ("success in(apple, box) and in(drink, box) plan group < add(apple, box) @ 1; add(drink, box) @ 1 > "
         "then close(box) @ 1", ["T054 close(box) @ 1"]),
        ("success in(apple, box) plan in(apple, box) and not grasped(apple) @ 1",
         ["T054 in(apple, box) and not grasped(apple) @ 1"]),
        ("success closed(box) plan press(button) @ 1", ["T054 press(button) @ 1"]),
        ("success closed(box) fail not open(box) plan close(box) @ 1", ["T055 closed(box)", "T055 close(box) @ 1"]),
    ],
)  # fmt: skip
def test_findings(text, findings):
    assert codes(text) == findings


@pytest.mark.parametrize(
    "text",
    [
        f"success in(apple, box) and in(drink, box) and closed(box) plan {DRAWER}",
        # A step on the way need not be true at success.
        "success in(apple, box) plan grasp(apple) @ 1 then add(apple, box) @ 1",
        # Twice the same, with something in between, or asked to happen again.
        "success in(apple, box) and closed(box) "
        "plan close(box) @ 1 then open(box) @ 1 then close(box) and in(apple, box) @ 1",
        "success was_pressed(button) plan press(button) @ 1 then newly press(button) @ 1",
        # Success names these as alternatives: its author knows that one may be forfeited.
        "success at least 2 of (in(apple, box), in(drink, box), in(cup_1, box)) "
        "plan each x in (apple, drink, cup_1): add(x, box) @ 2",
        "success closed(box) for 10 steps plan close(box) @ 1",
        # Success holds only as the last subtask completes.
        "success in(apple, box) and closed(box) plan add(apple, box) @ 1 then in(apple, box) and closed(box) @ 1",
        # A subtask that has an earlier one in it: the earlier one is a step on the way.
        "success in(apple, box) plan near(apple, box) @ 1 then near(apple, box, dist=3cm) @ 1 then add(apple, box) @ 1",
        "success in(apple, box) fail open(box) plan add(apple, box) @ 1",
    ],
)
def test_no_noise(text):
    assert codes(text) == []


def test_findings_that_need_no_vocabulary():
    assert codes("press(a) then press(a)", "") == ["T017 p", "T053 press(a)"]
    assert codes("group < press(a); press(a) >", "") == ["T017 g", "T051 press(a)"]
    assert codes("press(a) and not press(a)", "") == ["T050 press(a) and not press(a)"]
    assert codes("open(a) then closed(a) then open(a)", "") == ["T017 o"]
    assert codes("success closed(a) plan open(a) then close(a)", "") == ["T017 p"]  # perhaps the same


def test_errors_hide_the_warnings():
    assert codes('let b = "box_1" success closed(box) plan clse(box) @ 1') == ["T010 clse"]
