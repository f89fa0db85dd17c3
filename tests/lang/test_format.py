import pytest

from structrl.lang.diagnostics import TaskError
from structrl.lang.format import format_source, set_durations
from structrl.task import parse_task
from tests.lang.toy import ANCHOR, FULL, VOCABULARY


def test_anchor_and_full_example():
    assert format_source(ANCHOR.replace(" ", "").replace("then", " then ").replace("group", "group ")) == ANCHOR + "\n"
    tidy = FULL.replace("          # sim", "  # sim").replace("                 # name", "  # name")
    assert format_source(FULL) == tidy
    assert format_source(tidy) == tidy


def test_comments_stay_with_what_they_follow():
    text = """\
# the file

task t # its name
plan # in order
  group < # any order
    a(x); # one
    # about b
    b(x) @ 3 # two
    # no more
  > # all
  then c(x # odd
  ) # three
# the end
"""
    assert (
        format_source(text)
        == """\
# the file

task t  # its name

plan  # in order
  group <
    # any order
    a(x);  # one
    # about b
    b(x) @ 3  # two
    # no more
  >  # all
  # odd
  then c(x)  # three
# the end
"""
    )


def test_long_lines_are_broken():
    long = " and ".join(f"in(object_number_{i}, box)" for i in range(6))
    text = f"success {long}\nplan group < {'; '.join(f'add(object_number_{i}, box)' for i in range(6))} >"
    result = format_source(text)
    assert max(map(len, result.splitlines())) <= 100
    assert result.startswith("success in(object_number_0, box)\n        and in(object_number_1, box)\n")
    assert "    add(object_number_0, box);\n" in result


def test_what_could_be_read_in_two_ways_is_not_formatted():
    with pytest.raises(TaskError, match="two ways"):
        format_source("a(x) and b(x) for 10 steps")


def test_set_durations_writes_and_replaces_its_comment():
    once = set_durations(FULL, {"add_apple_box": (61.256, "mean of 9"), "close_box": (44.0, "mean of 9")})
    assert "    add(apple, box) @ 61.26;  # T_d: mean of 9\n" in once
    assert "  then close(box) @ 44  # T_d: mean of 9\n" in once
    assert "packed(drink) @ 58 as drink_in\n" in once
    twice = set_durations(once, {"add_apple_box": (60, "mean of 20, median 59")})
    assert "    add(apple, box) @ 60;  # T_d: mean of 20, median 59\n" in twice
    assert "61.26" not in twice and twice.count("# T_d") == 2
    assert format_source(twice) == twice
    durations = [each.duration for each in parse_task(twice, vocabulary=VOCABULARY).subtasks]
    assert durations == [60, 58, 44]


def test_set_durations_keeps_other_comments_and_bare_expressions():
    result = set_durations("a(x) # mine\nthen b(x)", {"a_x": (3, "n"), "b_x": (4.5, "n")})
    assert result == "# mine\na(x) @ 3  # T_d: n\nthen b(x) @ 4.5  # T_d: n\n"


def test_set_durations_inside_each_and_define():
    text = "define pack(x) = grasp(x) then add(x, box)\nplan each x in (apple, drink): pack(x)"
    both = {"grasp_apple": (5, "n"), "grasp_drink": (5, "n")}
    assert "  grasp(x) @ 5  # T_d: n\n  then add(x, box)\n" in set_durations(text, both)
    with pytest.raises(ValueError, match="grasp_apple and grasp_drink come from one place"):
        set_durations(text, {"grasp_apple": (5, "n"), "grasp_drink": (6, "n")})


def test_set_durations_of_an_unknown_label():
    with pytest.raises(ValueError, match="no subtask nope; the plan has a_x"):
        set_durations("a(x)", {"nope": (3, "n")})
