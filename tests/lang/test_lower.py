import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from structrl.lang.spec import AtomSpec, Program, SubtaskSpec, TaskSpec
from structrl.task import load_task, parse_task
from tests.lang.toy import ANCHOR, FULL, VOCABULARY


def order(text: str) -> dict[str, tuple[str, ...]]:
    subtasks = parse_task(text).subtasks
    return {each.label: tuple(subtasks[j].label for j in each.prerequisites) for each in subtasks}


def test_anchor():
    task = parse_task(ANCHOR)
    atoms = (AtomSpec("add", ("apple", "box")), AtomSpec("add", ("drink", "box")), AtomSpec("close", ("box",)))
    subtasks = (
        SubtaskSpec("add_apple_box", "add(apple, box)", (("atom", 0),), line=1),
        SubtaskSpec("add_drink_box", "add(drink, box)", (("atom", 1),), line=1),
        SubtaskSpec("close_box", "close(box)", (("atom", 2),), (0, 1), line=1),
    )
    assert task == TaskSpec("task", atoms, subtasks, source=ANCHOR)


def test_full_example():
    task = parse_task(FULL, vocabulary=VOCABULARY)
    apple, drink = AtomSpec("in", ("apple_1", "box_1")), AtomSpec("in", ("drink_1", "box_1"))
    assert task.atoms == (apple, drink, AtomSpec("grasped", ("drink_1",)), AtomSpec("closed", ("box_1",)))
    assert task.subtasks == (
        SubtaskSpec("add_apple_box", "add(apple, box)", (("atom", 0),), (), 61.0, line=11),
        SubtaskSpec("drink_in", "packed(drink)", (("atom", 1), ("atom", 2), ("not",), ("and", 2)), (), 58.0, line=11),
        SubtaskSpec("close_box", "close(box)", (("atom", 3),), (0, 1), 44.0, line=12),
    )
    assert task.success == (("atom", 0), ("atom", 1), ("atom", 3), ("and", 3)) and task.fail is None
    assert (task.name, task.sim, task.sim_args, task.horizon) == ("pack_lunch", "tabletop", {"scene": "lunch"}, 240)
    assert task.command == "Pack the apple and the drink in the lunch box, then close the lid."


def test_json_round_trip():
    for text in (ANCHOR, FULL, "newly near(a, b, dist=7cm) for 3 steps worth 2 @ 4.5 then at least 1 of (a(), b())"):
        task = parse_task(text, vocabulary=VOCABULARY if text is FULL else None)
        assert TaskSpec.from_json(task.to_json()) == task


def test_everything_a_subtask_can_say():
    (a, b, c) = parse_task("newly x(p) @ 2.5 as l worth 3 then not (2 steps of y(p)) then z(p) after l").subtasks
    assert (a.label, a.condition, a.newly, a.duration, a.worth) == ("l", "x(p)", True, 2.5, 3.0)
    assert (b.label, b.program, b.prerequisites) == ("y_p", (("atom", 1), ("steps_of", 2), ("not",)), (0,))
    assert c.prerequisites == (0, 1)


def test_pulse_atoms_come_from_the_vocabulary():
    text = 'sim tabletop(scene="lunch") success closed(box) plan press(button) and closed(box) then close(box)'
    task = parse_task(text, vocabulary=VOCABULARY)
    assert [each.pulse for each in task.atoms] == [True, False]
    assert [each.pulse for each in task.subtasks] == [True, False]


def test_units_times_and_shared_atoms():
    text = """sim tabletop(scene="lunch") horizon 12s success closed(box)
    plan near(apple, box, dist=7cm) @ 3.0s then near(apple, box, dist=0.07m) for 0.5s
         then near(apple, box, dist=70 mm, angle=180deg)"""
    task = parse_task(text, vocabulary=VOCABULARY)
    assert task.horizon == 240 and task.subtasks[0].duration == 60
    assert task.subtasks[1].program == (("atom", 0), ("for", 10))
    assert task.atoms[0].params == (("dist", 0.07),)
    assert task.atoms[1].params == (("angle", pytest.approx(3.141592653589793)), ("dist", 0.07))
    assert len(task.atoms) == 3  # with closed


def test_labels_are_unique():
    task = parse_task('a(x) then a(x) then a(x) as a_x_2 then a("x 1") @ 1')
    assert [each.label for each in task.subtasks] == ["a_x", "a_x_3", "a_x_2", "a_x_1"]


def test_definitions_and_each():
    text = """define pack(x) = grasp(x) as held then add(x, box) after held
    define full(x, d) = near(x, box, dist=d) and not grasped(x)
    plan each x in (apple, drink): (pack(x) then full(x, 5cm) @ 3)"""
    task = parse_task(text)
    labels = ["held_apple", "add_apple_box", "full_apple_5", "held_drink", "add_drink_box", "full_drink_5"]
    assert [each.label for each in task.subtasks] == labels
    assert [each.prerequisites for each in task.subtasks] == [(), (0,), (0, 1), (), (3,), (3, 4)]
    assert task.subtasks[5].condition == "full(drink, 5cm)"
    assert AtomSpec("near", ("drink", "box"), (("dist", 0.05),)) in task.atoms


def test_after_writes_every_partial_order():
    # The N: a before c, b before c and d. No nesting of `then` and `group` can say it.
    assert order("group < a() as a; b() as b; c() as c after a, b; d() as d after b >") == {
        "a": (),
        "b": (),
        "c": ("a", "b"),
        "d": ("b",),
    }
    assert order("group < c() as c after b; b() as b after a; a() as a >") == {"c": ("b", "a"), "b": ("a",), "a": ()}


# -- oracles ----------------------------------------------------------------------------------------------------------
leaves = st.just(None)
shapes = st.recursive(
    leaves, lambda inner: st.tuples(st.sampled_from(["then", "group"]), st.lists(inner, min_size=2, max_size=3))
)


@settings(max_examples=100, deadline=None)
@given(shapes)
def test_prerequisites_are_what_the_nesting_says(shape):
    """Two leaves are ordered exactly if the smallest part that holds both is a `then`."""
    paths: list[tuple[tuple[str, int], ...]] = []

    def text(shape, path) -> str:
        if shape is None:
            paths.append(path)
            return f"c{len(paths) - 1}()"
        kind, members = shape
        inner = [text(member, (*path, (kind, i))) for i, member in enumerate(members)]
        return f"({' then '.join(inner)})" if kind == "then" else f"group < {'; '.join(inner)} >"

    def before(j: int, i: int) -> bool:
        fork = next(((a, b) for a, b in zip(paths[j], paths[i], strict=False) if a != b), None)
        return fork is not None and fork[0][0] == "then" and fork[0][1] < fork[1][1]

    subtasks = parse_task(text(shape, ())).subtasks
    expected = [tuple(j for j in range(len(paths)) if before(j, i)) for i in range(len(paths))]
    assert [each.prerequisites for each in subtasks] == expected


def run(program: Program, atoms: tuple[bool, ...]) -> bool:
    """A plain reading of the postfix rules of spec.py, for conditions without time."""
    stack: list[bool] = []
    for op in program:
        match op:
            case ("atom", i):
                stack.append(atoms[i])
            case ("not",):
                stack.append(not stack.pop())
            case ("and" | "or" as name, n):
                last = [stack.pop() for _ in range(n)]
                stack.append(all(last) if name == "and" else any(last))
            case ("at_least", k, n):
                stack.append(sum(stack.pop() for _ in range(n)) >= k)
    (result,) = stack
    return result


# Pairs of a condition's text and its meaning, a function of the four atoms' truth.
conditions = st.recursive(
    st.integers(0, 3).map(lambda i: (f"p{i}()", lambda v: v[i])),
    lambda inner: st.one_of(
        inner.map(lambda a: (f"not ({a[0]})", lambda v: not a[1](v))),
        st.tuples(inner, inner).map(lambda x: (f"({x[0][0]}) and ({x[1][0]})", lambda v: x[0][1](v) and x[1][1](v))),
        st.tuples(inner, inner).map(lambda x: (f"({x[0][0]}) or ({x[1][0]})", lambda v: x[0][1](v) or x[1][1](v))),
        st.lists(inner, min_size=2, max_size=3).map(
            lambda xs: (f"at least 2 of ({', '.join(x[0] for x in xs)})", lambda v: sum(x[1](v) for x in xs) >= 2)
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(conditions)
def test_programs_mean_what_the_condition_says(condition):
    text, meaning = condition
    assume(any(meaning([bool(bits >> i & 1) for i in range(4)]) for bits in range(16)))  # or it is refused
    task = parse_task(text)
    index = {atom.predicate: i for i, atom in enumerate(task.atoms)}
    for bits in range(16):
        truth = [bool(bits >> i & 1) for i in range(4)]
        atoms = tuple(truth[int(name[1:])] for name in sorted(index, key=index.__getitem__))
        assert run(task.subtasks[0].program, atoms) == meaning(truth)


# -- reading files ----------------------------------------------------------------------------------------------------
def test_load_task(tmp_path):
    file = tmp_path / "lunch.task"
    file.write_text(ANCHOR, encoding="utf-8")
    task = load_task(file)
    assert task.name == "lunch" and task.path == str(file)
    assert dataclasses.replace(task, name="task", path="<string>") == parse_task(ANCHOR)


def test_load_task_that_is_not_there():
    with pytest.raises(FileNotFoundError, match=r"no task file 'tabletop/nope'"):
        load_task("tabletop/nope")


def test_load_task_that_is_not_utf8(tmp_path):
    file = tmp_path / "latin.task"
    file.write_bytes(b'plan a(x)\ncommand "caf\xe9"\n')
    with pytest.raises(ValueError, match=r"latin\.task:2:13: error\[T002\]: byte 22 is not UTF-8"):
        load_task(file)
