import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structrl.evaluate.words import longest_run, need, shortfalls, steps_text
from structrl.lang.programs import leaves, text, tree

from .example import ATOMS, TESTS, episode

A, B, G, C = (("atom", i) for i in range(4))
NOT = ("not",)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ((A,), "in(apple, box)"),
        ((B, G, NOT, ("and", 2)), "in(drink, box) and not grasped(drink)"),
        ((A, B, ("or", 2), C, ("and", 2)), "(in(apple, box) or in(drink, box)) and closed(box)"),
        ((A, B, ("and", 2), NOT), "not (in(apple, box) and in(drink, box))"),
        ((A, B, C, ("at_least", 2, 3)), "at least 2 of (in(apple, box), in(drink, box), closed(box))"),
        ((A, B, ("and", 2), ("for", 10)), "(in(apple, box) and in(drink, box)) for 10 steps"),
        ((A, ("steps_of", 5)), "5 steps of in(apple, box)"),
    ],
)
def test_text(program, words):
    assert text(tree(program), ATOMS) == words


def test_malformed_programs():
    with pytest.raises(ValueError, match="leaves 2"):
        tree((A, B))
    with pytest.raises(ValueError, match="unknown operation"):
        tree((A, ("xor", 2)))


def test_leaves_carry_what_each_atom_must_be():
    node = tree((A, B, G, NOT, ("and", 2), NOT, ("and", 2)))  # in(apple) and not (in(drink) and not grasped)
    assert leaves(node) == [(0, True), (1, False), (2, True)]


def test_need():
    assert need(TESTS[0], True) == "< 0 m"
    assert need(TESTS[0], False) == ">= 0 m"
    assert need(TESTS[2], True) == "> 0.5"
    assert need(TESTS[2], False) == "<= 0.5"


@given(st.lists(st.booleans(), max_size=30))
def test_longest_run(flags):
    runs = "".join("x" if flag else " " for flag in flags).split()
    assert longest_run(np.array(flags, bool)) == max(map(len, runs), default=0)


def test_steps_text():
    assert steps_text(np.array([4])) == "step 4"
    assert steps_text(np.array([3, 4, 5, 9])) == "steps 3-5 and 9"
    assert steps_text(np.array([1, 3, 4, 6])) == "steps 1, 3-4 and 6"
    assert steps_text(np.arange(0, 20, 2)) == "steps 0, 2, 4, 6, ..."


def why(program, values, since=0):
    one = episode(values)
    return shortfalls(tree(program), TESTS, one.atoms, one.atom_values, since)


def test_closest_value_and_its_step():
    values = [[0.5, 1, 0, 1], [0.031, 1, 1, 1], [0.2, 1, 1, 0.4]]
    assert why((A,), values) == ["in(apple, box): best 0.031 m at step 1, needs < 0 m"]
    assert why((A,), values, since=2) == ["in(apple, box): best 0.2 m at step 2, needs < 0 m"]
    assert why((C,), values) == ["closed(box): best 0.4 rad at step 2, needs < 0.1 rad"]
    assert why((A, C, ("and", 2)), values) == why((A,), values) + why((C,), values)


def test_a_negated_atom_needs_the_other_side():
    values = [[1, 1, 0.9, 1], [1, 1, 0.7, 1]]
    assert why((G, NOT), values) == ["not grasped(drink): best 0.7 at step 1, needs <= 0.5"]


def test_only_what_was_missing_is_named():
    values = [[1, -1, 1, 1], [1, -1, 0.8, 1]]  # drink in the box, but never let go
    assert why((B, G, NOT, ("and", 2)), values) == ["not grasped(drink): best 0.8 at step 1, needs <= 0.5"]


def test_never_all_at_once():
    values = [[-1, 0.2, 0, 1], [0.1, -1, 0, 1]]
    (line,) = why((A, B, ("and", 2)), values)
    assert "never all at once" in line
    assert line.endswith("at step 1, all but in(apple, box): 0.1 m at step 1, needs < 0 m")


def test_not_long_enough():
    values = [[-1, 1, 0, 1], [-1, 1, 0, 1], [1, 1, 0, 1], [-1, 1, 0, 1]]
    (line,) = why((A, ("for", 3)), values)
    assert "at 3 steps, at most 2 in a row" in line


def test_either_way_of_an_or_is_explained():
    values = [[0.3, 0.4, 0, 1]]
    assert why((A, B, ("or", 2)), values) == [
        "either in(apple, box): best 0.3 m at step 0, needs < 0 m",
        "or in(drink, box): best 0.4 m at step 0, needs < 0 m",
    ]


def test_no_measure():
    assert "no measure" in why((A,), [[np.nan, 1, 0, 1]])[0]
