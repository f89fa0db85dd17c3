import io
import subprocess
import sys

import pytest
from hypothesis import given, settings

from structrl.lang.explain import describe_task, explain
from structrl.lang.order import mermaid, order_sentence, outline
from structrl.lang.spec import SubtaskSpec, TaskSpec
from structrl.task import parse_task
from tests.evaluate.example import TASK
from tests.lang.test_commands import _path
from tests.lang.test_lower import shapes


def plan(*prerequisites):
    subtasks = tuple(SubtaskSpec("abcdefgh"[i], "x", (("atom", 0),), tuple(p)) for i, p in enumerate(prerequisites))
    return TaskSpec("t", TASK.atoms, subtasks)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (plan([]), "Order: a."),
        (plan([], [0], [0, 1]), "Order: a, then b, then c."),
        (plan([], [], [0, 1]), "Order: a and b in any order, then c."),
        (plan([1], [], [0, 1], [0, 1]), "Order: b, then a, then c and d in any order."),
        # a then b, c then d, nothing across: no sequence of stages says that
        (plan([], [0], [], [2]), "Partial order: each subtask says what must come before it."),
    ],
)
def test_order_sentence(task, sentence):
    assert order_sentence(task) == sentence


def test_task_in_words():
    words = describe_task(TASK, 20, {"closed": "the lid is shut"})
    assert 'Instruction to the policy: "Pack the box, then close it."' in words
    assert "at the latest" in words and "10 steps (0.5 s)" in words
    assert "Order: apple_in and drink_in in any order, then close." in words
    assert "2. drink_in: done when in(drink, box) and not grasped(drink)\n     It may come at any time.\n" in words
    assert "It counts only after apple_in and drink_in.\n     Reference duration 2 steps (0.1 s)" in words
    assert "Success, which ends the episode: in(apple, box) and in(drink, box) and closed(box)" in words
    assert words.endswith("closed: the lid is shut.")


def test_only_direct_prerequisites_are_named():
    words = describe_task(plan([], [0], [0, 1]))
    assert "1. a: done when x, that is in(apple, box)" in words  # as written, and as tested
    assert "It counts only after b." in words
    assert "after a and b" not in words


def drawn(text: str) -> str:
    return "\n".join(outline(parse_task(text)))


def test_outline():
    assert drawn("a()") == "a"
    assert drawn("a() then b()") == "a\nv\nb"
    nested = "open() then group < a(); grasp() then group < b(); c() > > then close()"
    assert (
        drawn(nested)
        == """\
open
v
+- a
+- grasp
   v
   +- b
   +- c
v
close"""
    )
    # The N of test_lower: a before c, b before c and d. No nesting of `then` and `group` can say it.
    assert (
        drawn("group < a() as a; b() as b; c() as c after a, b; d() as d after b > then e()")
        == """\
+- a
+- b
+- d  (after b)
+- c  (after a and b)
v
e"""
    )


@settings(max_examples=100, deadline=None)
@given(shapes)
def test_the_outline_can_be_read_back(shape):
    """Every plan without `after`: lines with bars and `v` give the order that the prerequisites give."""
    count = 0

    def text(shape) -> str:
        nonlocal count
        if shape is None:
            count += 1
            return f"c{count - 1}()"
        kind, members = shape
        inner = [text(member) for member in members]
        return f"({' then '.join(inner)})" if kind == "then" else f"group < {'; '.join(inner)} >"

    def read(lines: list[str]) -> tuple[list[int], set[tuple[int, int]]]:
        """Subtasks of some lines, and which pairs are ordered."""
        numbers: list[int] = []
        pairs: set[tuple[int, int]] = set()
        if "v" in lines:
            cut = lines.index("v")
            (a, one), (b, two) = read(lines[:cut]), read(lines[cut + 1 :])
            return a + b, one | two | {(i, j) for i in a for j in b}
        starts = [k for k, line in enumerate(lines) if line.startswith("+- ")]
        if not starts:
            (line,) = lines
            return [int(line[1:])], set()
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            inner, more = read([line[3:] for line in lines[start:end]])
            numbers += inner
            pairs |= more
        return numbers, pairs

    task = parse_task(text(shape))
    numbers, pairs = read(outline(task))
    assert sorted(numbers) == list(range(len(task.subtasks)))
    assert pairs == {(j, i) for i, each in enumerate(task.subtasks) for j in each.prerequisites}


def test_mermaid():
    assert (
        mermaid(parse_task('a(x) then group < b("p <&> \\"q"); c(x) > then d(x)'))
        == """\
flowchart LR
  s0["a_x<br/>a(x)"]
  s1["b_p_q<br/>b(#34;p #60;#38;#62; #92;#34;q#34;)"]
  s2["c_x<br/>c(x)"]
  s3["d_x<br/>d(x)"]
  s0 --> s1
  s0 --> s2
  s1 --> s3
  s2 --> s3"""
    )


def test_formats_and_exit_codes(tmp_path, monkeypatch, capsys):
    good, bad = tmp_path / "good.task", tmp_path / "bad.task"
    good.write_text("a(x) then b(x)")
    bad.write_text("a(x) then b(x")
    assert explain([str(good), "--format", "ascii"]) == 0
    assert capsys.readouterr().out == "a_x\nv\nb_x\n"
    assert explain([str(good), "--format", "mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart LR\n  s0[")
    assert explain([str(bad), str(good)]) == 1
    out, err = capsys.readouterr()
    assert "this parenthesis is not closed" in err and out.startswith("good  (")
    assert explain([str(tmp_path / "none.task"), str(good)]) == 2
    assert "no task file" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a(x) then b(x)")))
    assert explain(["-"]) == 0
    assert "Order: a_x, then b_x.\n    a_x\n    v\n    b_x\n" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        explain([])
    assert stop.value.code == 2


def test_starts_fast_and_light():
    """Under half a second of CPU, and none of the heavy libraries."""
    script = (
        "import sys, time\nfrom structrl.cli import main\nassert main(['explain', 'tabletop/pack_lunch']) == 0\n"
        "print(time.process_time())\n"
        "print(sorted({'torch', 'numpy', 'mujoco', 'lightning', 'tensordict', 'h5py'} & set(sys.modules)))"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=_path())
        *text, time, modules = done.stdout.splitlines()
        assert modules == "[]"
        assert text[0].startswith("pack_lunch  (") and any("that is in(apple_1, box_1)" in line for line in text)
        seconds.append(float(time))
    assert min(seconds) < 0.5


def test_a_simulators_own_success_and_thresholds_are_said(tmp_path, capsys):
    file = tmp_path / "pots.task"
    file.write_text('sim libero(suite="libero_10", task=2)\nplan turn_on(flat_stove) then lift(moka_pot, height=10cm)')
    assert explain([str(file)]) == 0
    out = capsys.readouterr().out
    assert "Success, by libero's own check, which ends the episode: turned_on(flat_stove_1) and on(moka_pot_1," in out
    assert "turned_on: LIBERO's TurnOn: the stove's knob is turned; angle of the knob >= 0.5 rad." in out
    file.write_text(file.read_text().replace("plan", "success up(moka_pot) plan"))
    assert explain([str(file)]) == 0
    out = capsys.readouterr().out
    assert "Success, which ends the episode: up(moka_pot_1)" in out and "own check" not in out
