"""`structrl import`: BDDL problems and stage tables become task files that parse, format and mean the same."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structrl.cli import main
from structrl.lang import bddl, stages
from structrl.lang.format import format_source
from structrl.sims.vocabulary import load_vocabulary
from structrl.task import parse_task

# Written for this test in the shape of LIBERO's problems.
PROBLEM = """\
(define (problem LIBERO_Kitchen_Tabletop_Manipulation)
  (:domain robosuite)
  (:language Put the tea cup in the top drawer, light the stove and close the drawer)
  (:regions
    (cup_init_region
      (:target kitchen_table)   ; a comment with a ( in it
      (:ranges ((-0.05 0.1 0.05 0.2)))
      (:yaw_rotation ((0.0 0.0))))
    (top_region (:target wooden_cabinet_1)))
  (:fixtures kitchen_table - kitchen_table wooden_cabinet_1 - wooden_cabinet flat_stove_1 - flat_stove)
  (:objects tea_cup_1 - tea_cup)
  (:obj_of_interest tea_cup_1 wooden_cabinet_1)
  (:init (On tea_cup_1 kitchen_table_cup_init_region) (Open wooden_cabinet_1_top_region))
  (:goal
    (And (In tea_cup_1 wooden_cabinet_1_top_region) (Turnon flat_stove_1) (Close wooden_cabinet_1_top_region)))
)
"""
CONVERTED = """\
# From KITCHEN_SCENE3_tea.bddl, problem LIBERO_Kitchen_Tabletop_Manipulation.
# BDDL has no order, so all goals form one group: write `then` between those that have one.
task KITCHEN_SCENE3_tea
command "Put the tea cup in the top drawer, light the stove and close the drawer"
sim     libero

plan
  group <
    in(tea_cup_1, wooden_cabinet_1_top_region);
    turned_on(flat_stove_1);
    closed(wooden_cabinet_1_top_region)
  >
"""


# The same things and the same goal as one of LIBERO's own tasks, in words of this test.
POTS = """\
(define (problem POTS) (:language both pots, please)
  (:fixtures kitchen_table - kitchen_table Flat_Stove_1 - flat_stove)
  (:objects moka_pot_1 moka_pot_2 - moka_pot)
  (:regions (flat_stove_init_region (:target kitchen_table) (:ranges ((0 0 1 1))))
    (moka_pot_right_init_region (:target kitchen_table)) (moka_pot_left_init_region (:target kitchen_table))
    (cook_region (:target flat_stove_1)) (left_region (:target bowl_drainer_1)))
  (:goal (And (On moka_pot_1 flat_stove_1_cook_region) (On moka_pot_2 flat_stove_1_cook_region) (Turnon Flat_Stove_1))))
"""


@pytest.mark.parametrize("name", ["pots", "KITCHEN_SCENE8_put_both_moka_pots_on_the_stove"])
def test_suite_and_task_are_found(name, tmp_path, capsys):
    source, target = tmp_path / f"{name}.bddl", tmp_path / "pots.task"
    source.write_text(POTS)
    assert main(["import", "bddl", str(source), "--output", str(target)]) == 0 and capsys.readouterr().err == ""
    assert 'sim     libero(suite="libero_10", task=8)\n' in target.read_text()
    assert main(["check", str(target)]) == 0


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (("(Turnon Flat_Stove_1)", "(Turnoff Flat_Stove_1)"), "no task of this name and goal"),
        (("moka_pot_2 - moka_pot", "moka_pot_2 - moka_pot plate_1 - plate"), "no task of this name and goal"),
    ],
)
def test_a_variant_is_not_taken_for_the_task(change, remark, tmp_path, capsys):
    source = tmp_path / "KITCHEN_SCENE8_put_both_moka_pots_on_the_stove.bddl"
    source.write_text(POTS.replace(*change))
    assert main(["import", "bddl", str(source)]) == 0
    out, err = capsys.readouterr()
    assert remark in err and "sim     libero\n" in out


def test_several_tasks_that_a_problem_may_be():
    """The ten of libero_spatial have one goal and the same things; only the name tells them apart."""
    libero = load_vocabulary("libero")
    scene = libero.scenes["libero_spatial/0"]
    objects = " ".join(f"{name} - x" for name, kinds in scene.items() if "object" in kinds)
    regions = " ".join(
        f"({name.removeprefix('main_table_')} (:target main_table))" for name in scene if name.startswith("main_")
    )
    cabinet = " ".join(
        f"({name} (:target wooden_cabinet_1))" for name in ("top_region", "middle_region", "bottom_region", "top_side")
    )
    text = (
        "(define (problem p) (:fixtures main_table - table wooden_cabinet_1 - wooden_cabinet flat_stove_1 - flat_stove)"
        f" (:objects {objects}) (:regions {regions} {cabinet} (cook_region (:target flat_stove_1)))"
        " (:goal (On akita_black_bowl_1 plate_1)))"
    )
    task, (remark,) = bddl.convert(text, "bowl.bddl", libero)
    assert "it could be libero_spatial/0, libero_spatial/1," in remark and "sim     libero\n" in task
    task, remarks = bddl.convert(text, f"{libero.title('libero_spatial/7')}.bddl", libero)
    assert 'suite="libero_spatial", task=7' in task and not remarks


def test_long_names_are_cut():
    task, _ = bddl.convert(problem("(On a b)"), "LIVING_ROOM_SCENE5_" + "put_the_mug_" * 10 + ".bddl")
    assert (
        parse_task(task.replace("sim     libero\n", "")).name == "LIVING_ROOM_SCENE5_" + "put_the_mug_" * 6 + "put_the"
    )


def problem(goal: str) -> str:
    return f"(define (problem p) (:goal {goal}))"


def plan(text: str) -> str:
    return bddl.convert(text)[0].splitlines()[-1].strip()


def test_a_problem(tmp_path, capsys):
    source = tmp_path / "KITCHEN_SCENE3_tea.bddl"
    source.write_text(PROBLEM)
    assert main(["import", "bddl", str(source)]) == 0
    out, err = capsys.readouterr()
    assert out == CONVERTED == format_source(out)
    assert "objects were not checked: LIBERO's five suites have no task of this name and goal" in err
    target = tmp_path / "tea.task"
    assert main(["import", "bddl", str(source), "--output", str(target)]) == 0
    assert capsys.readouterr().out == "" and target.read_text() == CONVERTED


def test_a_problem_compiles():
    task = parse_task(CONVERTED.replace("sim     libero\n", ""))
    assert [subtask.prerequisites for subtask in task.subtasks] == [(), (), ()]
    assert [atom.predicate for atom in task.atoms] == ["in", "turned_on", "closed"]
    assert task.command and task.command.startswith("Put the tea cup")


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("(And (On Bowl_1 plate_1))", "on(bowl_1, plate_1)"),
        ("(Open drawer_1)", "open(drawer_1)"),
        ("(and (TurnOff s) (up a) (TurnOff s))", "group < turned_off(s); up(a) >"),
        ("(And (On then 2nd-bowl))", 'on("then", "2nd-bowl")'),
    ],
)
def test_goals(goal, expected):
    assert plan(problem(goal)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(define (problem p)\n(:goal (And (On a b))", "line 2: this `(` is never closed"),
        ("(define))", "line 1: a `)` without its `(`"),
        ("hello", "not a BDDL problem"),
        ("", "not a BDDL problem"),
        ("()", "not a BDDL problem"),
        ("(define (problem p))", "it has no `(:goal ...)`"),
        ("(define (:goal (On a b)))", "it has no `(problem ...)`"),
        (problem("(And)"), "line 1: the goal is empty"),
        (problem("(And (Or (On a b) (On b a)))"), "`or` in a goal"),
        (problem("(And (Not (On a b)))"), "`not` in a goal"),
        (problem("(forall (?x - cup) (On ?x b))"), "`forall` in a goal"),
        (problem("(On a (b))"), "takes names"),
        (problem("(On a b) (On b a)"), None),
        (problem("(And x)"), "a predicate such as"),
        (problem("(And (is-on a b))"), "cannot name a predicate"),
        (problem("(On a b)").replace("(:goal", "(:goal (On a b)) (:goal"), "a second `(:goal ...)`"),
        ("(define (problem p) (:language put (it) down) (:goal (On a b)))", "parentheses inside"),
        ("(" * 400_000, "is never closed"),
        ("(" * 400_000 + ")" * 400_000, "not a BDDL problem"),
        ("a" * 1_000_001, "at most 1,000,000"),
    ],
)
def test_what_is_refused(text, message):
    if message is None:  # several goals without `And`: a conjunction all the same
        assert plan(text) == "group < on(a, b); on(b, a) >"
        return
    with pytest.raises(bddl.BddlError) as error:
        bddl.convert(text)
    assert message in str(error.value)


@given(st.text(st.sampled_from("abZ 9;\"\\\n\t,.'é‮#"), max_size=30))
def test_any_language_command_survives(words):
    """Text of any kind is carried over word by word, or refused with a reason."""
    text = f"(define (problem p) (:language {words}) (:goal (On a b)))"
    try:
        task = parse_task(bddl.convert(text)[0].replace("sim     libero\n", ""))
    except ValueError:  # BddlError and TaskError
        return
    assert task.command == " ".join(" ".join(line.partition(";")[0] for line in f"{words})".splitlines())[:-1].split())


def test_stages(tmp_path, capsys):
    table = tmp_path / "tea.json"
    table.write_text(json.dumps([["leaves_in_pot", "at least 2 of (in(a, pot), in(b, pot), hot(p))"], [], ["poured"]]))
    assert main(["import", "stages", str(table)]) == 0
    out, err = capsys.readouterr()
    assert out == format_source(out) and out.endswith(
        "group < leaves_in_pot(); at least 2 of (in(a, pot), in(b, pot), hot(p)) > then poured()\n"
    )
    assert "stage 2 is empty and was left out" in err
    task = parse_task(out)
    assert [subtask.prerequisites for subtask in task.subtasks] == [(), (), (0, 1)]
    assert task.subtasks[0].label == "leaves_in_pot"


@given(st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=3, unique=True), max_size=3))
def test_stages_are_the_order(table):
    names = [name for stage in table for name in stage]
    if not names or len(set(names)) < len(names):
        with pytest.raises(stages.StagesError):
            stages.convert(json.dumps(table))
        return
    task = parse_task(stages.convert(json.dumps(table))[0])
    assert [subtask.label for subtask in task.subtasks] == names
    stage_of = {name: i for i, stage in enumerate(table) for name in stage}
    for subtask in task.subtasks:
        earlier = {name for name in names if stage_of[name] < stage_of[subtask.label]}
        assert {names[i] for i in subtask.prerequisites} == earlier


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"stages": []}', "a list of lists"),
        ('["a", "b"]', "a list of lists"),
        ("[[]]", "no entries"),
        ("[[1]]", "stage 1, entry 1: 1 is not a name"),
        ('[["a"], ["a"]]', "stage 2, entry 1: `a()` is at stage 1, entry 1 already"),
        ('[["then"]]', "a word of the task language"),
        ('[["place mug on counter"]]', "neither a name nor a condition"),
        ('[["a() then b()"]]', "not a single condition"),
        ('[["a() @ 3"]]', "not a single condition"),
        ('[["plan a()"]]', "not a single condition"),
        ('[["a() # note"]]', "holds a comment"),
        ('[["a() and b() for 3 steps"]]', "can be read in two ways"),
    ],
)
def test_tables_that_are_refused(text, message):
    with pytest.raises(stages.StagesError) as error:
        stages.convert(text)
    assert message in str(error.value)


def test_exit_codes(tmp_path, capsys, monkeypatch):
    assert main(["import", "bddl", str(tmp_path / "none.bddl")]) == 2
    assert "none.bddl: No such file" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"(define")))
    assert main(["import", "bddl", "-"]) == 1
    assert capsys.readouterr().err == "structrl import: error: -: line 1: this `(` is never closed\n"
    (tmp_path / "latin.json").write_bytes(b'[["\xe9"]]')
    assert main(["import", "stages", str(tmp_path / "latin.json")]) == 2
    assert "latin.json: byte 3 is not UTF-8" in capsys.readouterr().err
    (tmp_path / "long.bddl").write_bytes(b" " * 1_000_001)
    assert main(["import", "bddl", str(tmp_path / "long.bddl")]) == 2
    assert "more than 1,000,000 bytes" in capsys.readouterr().err
    (tmp_path / "fine.json").write_text('[["a"]]')
    assert main(["import", "stages", str(tmp_path / "fine.json"), "--output", str(tmp_path / "no" / "x.task")]) == 2
    with pytest.raises(SystemExit) as stop:
        main(["import", "pddl", "x"])
    assert stop.value.code == 2
