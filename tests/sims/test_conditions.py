"""The condition table against a plain evaluator that looks at the whole past instead of keeping counters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structrl.sims.conditions import ConditionTable
from tests.toy import toy_task

ATOMS = 3


def expressions():
    """Trees ('atom', i), ('not', x), ('and'|'or', *xs), ('at_least', k, *xs), ('for'|'steps_of', n, x)."""
    leaf = st.tuples(st.just("atom"), st.integers(0, ATOMS - 1))

    def deeper(inner):
        several = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            st.tuples(st.just("not"), inner),
            st.tuples(st.sampled_from(["and", "or"]), several).map(lambda x: (x[0], *x[1])),
            st.tuples(st.integers(1, 3), several).map(lambda x: ("at_least", x[0], *x[1])),
            st.tuples(st.sampled_from(["for", "steps_of"]), st.integers(1, 4), inner),
        )

    return st.recursive(leaf, deeper, max_leaves=6)


def postfix(tree):
    kind, *rest = tree
    if kind == "atom":
        return (tree,)
    number = rest[:1] if kind in ("at_least", "for", "steps_of") else []
    children = rest[len(number) :]
    ops = tuple(op for child in children for op in postfix(child))
    count = [len(children)] if kind in ("and", "or", "at_least") else []
    return (*ops, (kind, *number, *count))


def truth(tree, trace):
    """Truth of `tree` after the last row of `trace` [t+1][atoms], by definition."""
    kind, *rest = tree
    match kind:
        case "atom":
            return bool(trace[-1][rest[0]])
        case "not":
            return not truth(rest[0], trace)
        case "and":
            return all(truth(x, trace) for x in rest)
        case "or":
            return any(truth(x, trace) for x in rest)
        case "at_least":
            return sum(truth(x, trace) for x in rest[1:]) >= rest[0]
        case "for":
            steps, child = rest
            return len(trace) >= steps and all(truth(child, trace[: len(trace) - back]) for back in range(steps))
        case "steps_of":
            steps, child = rest
            return sum(truth(child, trace[: end + 1]) for end in range(len(trace))) >= steps
    raise AssertionError(kind)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equals_the_definition_on_mixed_tasks_resets_and_moved_states(data):
    trees = data.draw(st.lists(st.lists(expressions(), min_size=1, max_size=3), min_size=1, max_size=3))
    fails = [data.draw(st.none() | expressions()) for _ in trees]
    tasks = [
        toy_task(
            len(subtasks),
            programs=[postfix(x) for x in subtasks],
            atoms=ATOMS,
            success=postfix(subtasks[-1]),
            fail=None if fail is None else postfix(fail),
        )
        for subtasks, fail in zip(trees, fails, strict=True)
    ]
    E = 3
    table = ConditionTable(tasks, E)
    assert table.num_subtasks == max(map(len, trees)) and table.num_atoms == ATOMS
    traces = [[] for _ in range(E)]
    task = [0] * E
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    for _ in range(data.draw(st.integers(1, 12))):
        ids = np.flatnonzero(rng.random(E) < 0.7)
        restart = ids[[not traces[i] or rng.random() < 0.2 for i in ids]] if len(ids) else ids
        rows = rng.integers(len(tasks), size=len(restart))
        table.reset(restart, rows)
        for i, row in zip(restart, rows, strict=True):
            traces[i], task[i] = [], row
        if rng.random() < 0.3:  # the state moves to other environments of a new table
            order = rng.permutation(E)
            moved = ConditionTable(tasks, E)
            moved.set_state(np.arange(E), table.state(order))
            table, traces, task = moved, [traces[i] for i in order], [task[i] for i in order]
            ids = np.flatnonzero([len(x) > 0 for x in traces])
        atoms = rng.random((len(ids), ATOMS)) < 0.5
        verdict = table.step(ids, atoms)
        for n, i in enumerate(ids):
            traces[i].append(atoms[n])
            subtasks, fail = trees[task[i]], fails[task[i]]
            expected = [truth(x, traces[i]) for x in subtasks]
            assert verdict.holds[n].tolist() == expected + [False] * (table.num_subtasks - len(subtasks))
            assert verdict.success[n] == expected[-1]
            assert verdict.fail[n] == (fail is not None and truth(fail, traces[i]))


def test_counters_start_at_the_reset_evaluation():
    table = ConditionTable([toy_task(1, programs=[(("atom", 0), ("for", 2))])])
    ids, true = np.array([0]), np.array([[True]])
    table.reset(ids, [0])
    assert [table.step(ids, true).holds.item() for _ in range(3)] == [False, True, True]


def test_equal_expressions_are_evaluated_once():
    program = (("atom", 0), ("atom", 1), ("and", 2), ("for", 3))
    table = ConditionTable([toy_task(2, programs=[program, (*program, ("not",))], success=program)])
    assert table.state(np.array([0]))["counters"].shape == (1, 1)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ((("atom", 3),), "unknown operation"),
        ((("atom", 0), ("and", 2)), "needs 2 operands, 1 are there"),
        ((("atom", 0), ("atom", 1)), "leaves 2"),
        ((), "leaves 0"),
        ((("atom", 0), ("xor", 1)), "unknown operation"),
        ((("atom", 0), ("for", 0)), "unknown operation"),
        ((("atom", 0), ("and", 0)), "needs 0 operands"),
    ],
)
def test_malformed_programs_name_file_and_subtask(program, message):
    with pytest.raises(ValueError, match=rf"(?s)tasks/toy.task.*subtask 's1'.*{message}"):
        ConditionTable([toy_task(2, programs=[(("atom", 0),), program])])
