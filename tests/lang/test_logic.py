"""Conditions against each other: what the logic says is compared with all truth tables."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structrl.lang.logic import Logic
from structrl.lang.programs import Node, tree
from structrl.task import parse_task
from tests.lang.toy import VOCABULARY

N_ATOMS = 4


def grow(inner):
    parts = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return st.one_of(
        inner.map(lambda a: Node("not", 0, (a,))),
        st.builds(Node, st.sampled_from(["and", "or"]), st.just(0), parts),
        parts.flatmap(lambda p: st.integers(1, len(p)).map(lambda k: Node("at_least", k, p))),
    )


nodes = st.recursive(st.integers(0, N_ATOMS - 1).map(lambda i: Node("atom", i)), grow, max_leaves=10)
timed = st.recursive(
    st.integers(0, N_ATOMS - 1).map(lambda i: Node("atom", i)),
    lambda inner: st.one_of(
        grow(inner),
        st.builds(Node, st.sampled_from(["for", "steps_of"]), st.integers(1, 3), st.tuples(inner)),
    ),
    max_leaves=8,
)


def truth(node: Node, history: list[tuple[bool, ...]]) -> bool:
    """Whether a condition is true at the end of a history of atoms, read off its definition."""
    parts = [truth(part, history) for part in node.parts]
    match node.kind:
        case "atom":
            return history[-1][node.number]
        case "not":
            return not parts[0]
        case "and":
            return all(parts)
        case "or":
            return any(parts)
        case "at_least":
            return sum(parts) >= node.number
    past = [truth(node.parts[0], history[: t + 1]) for t in range(len(history))]
    if node.kind == "for":
        return len(past) >= node.number and all(past[-node.number :])
    return sum(past) >= node.number


def worlds():
    return ([atoms] for atoms in itertools.product([False, True], repeat=N_ATOMS))


@settings(max_examples=300, deadline=None)
@given(nodes, nodes)
def test_implication_and_possibility_are_exact_without_time(a, b):
    logic = Logic([None] * N_ATOMS)
    assert logic.implies(a, b) == all(truth(b, world) for world in worlds() if truth(a, world))
    assert logic.possible((a, True), (b, True)) == any(truth(a, world) and truth(b, world) for world in worlds())


@settings(max_examples=300, deadline=None)
@given(timed, timed, st.lists(st.tuples(*[st.booleans()] * N_ATOMS), min_size=1, max_size=6))
def test_implication_is_sound_with_time(a, b, history):
    logic = Logic([None] * N_ATOMS)
    if logic.implies(a, b) and truth(a, history):
        assert truth(b, history)
    if not logic.possible((a, True), (b, True)):
        assert not (truth(a, history) and truth(b, history))


def says(one: str, other: str) -> str:
    """`implies`, `excludes` or `open`: what is known of two conditions in the toy vocabulary."""
    task = parse_task(f'sim tabletop(scene="lunch") success closed(box) plan group < {one}; {other} >', "t", VOCABULARY)
    a, b = (tree(each.program) for each in task.subtasks)
    logic = Logic(task.atoms, VOCABULARY)
    if logic.implies(a, b):
        return "implies"
    return "open" if logic.possible((a, True), (b, True)) else "excludes"


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        ("open(box)", "closed(box)", "excludes"),
        ("closed(box)", "open(box)", "excludes"),
        ("closed(box)", "not open(box)", "implies"),
        ("not open(box)", "closed(box)", "open"),
        ("near(apple, box, dist=3cm)", "near(apple, box)", "implies"),
        ("near(apple, box)", "near(apple, box, dist=3cm)", "open"),
        ("near(apple, box, dist=3cm)", "near(drink, box)", "open"),
        ("near(apple, box, angle=30deg)", "near(apple, box)", "open"),  # not the threshold: nothing is known
        ("press(button)", "was_pressed(button)", "implies"),
        ("add(apple, box)", "in(apple, box) or closed(box)", "implies"),
        ("closed(box) for 10 steps", "closed(box) for 5 steps", "implies"),
        ("closed(box) for 5 steps", "closed(box) for 10 steps", "open"),
        ("closed(box) for 5 steps", "5 steps of closed(box)", "implies"),
        ("5 steps of closed(box)", "closed(box)", "open"),
        ("closed(box) for 5 steps", "open(box)", "excludes"),
    ],
)
def test_what_the_vocabulary_adds(one, other, answer):
    assert says(one, other) == answer


def test_thresholds_that_are_given_decide_whether_two_exclude_each_other():
    text = 'sim tabletop(scene="lunch") success closed(box) plan '
    for share, possible in (("share=9%", False), ("share=77%", True)):
        task = parse_task(f"{text} group < closed(box, {share}); open(box, share=52%) >")
        logic = Logic(task.atoms, _shipped())
        assert logic.possible(*((tree(each.program), True) for each in task.subtasks)) == possible


def _shipped():
    from structrl.sims.vocabulary import load_vocabulary

    return load_vocabulary("tabletop")


def test_hard_questions_end_without_an_answer():
    """Pigeons and holes, which no such search can settle: bounded, and open rather than guessed."""
    holes, pigeons = 9, 10
    each = [Node("or", 0, tuple(Node("atom", p * holes + h) for h in range(holes))) for p in range(pigeons)]
    two = [
        Node("and", 0, (Node("atom", p * holes + h), Node("atom", q * holes + h)))
        for h in range(holes)
        for p in range(pigeons)
        for q in range(p)
    ]
    logic = Logic([None] * (holes * pigeons))
    start = time.process_time()
    for _ in range(100):
        assert logic.possible(*((node, True) for node in each), *((node, False) for node in two))
    assert time.process_time() - start < 3
