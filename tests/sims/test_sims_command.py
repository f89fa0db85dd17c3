"""A simulator outside of structrl, from `structrl sims register` to a batch of environments."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from structrl.cli import main
from structrl.lang.navigate import proposals
from structrl.sims.registrations import registrations_file
from structrl.sims.registry import make_simulator
from structrl.sims.vocabulary import load_vocabulary, parse_vocabulary, simulators
from tests.toy import toy_task

ROOT = Path(__file__).parent.parent.parent
WORDS = {
    "sim": "point",
    "control_hz": 10,
    "has_success": True,
    "predicates": {
        "above": {"args": ["axis"], "meaning": "the point is far up", "measure": "coordinate", "op": ">",
                  "threshold": 0.6, "unit": "m", "params": {"height": {"unit": "m", "default": 0.6}}},
    },
    "verbs": {"raise": {"args": ["axis"], "predicate": "above", "meaning": "move the point up"}},
    "scenes": {"plane": {"axis_0": ["axis"], "axis_1": ["axis"], "wall": ["thing"]}},
}  # fmt: skip
TASK = 'sim point(scene="plane")\nhorizon 20 steps\nplan raise(axis_0) @ 5 then raise(axis_1) @ 5\n'


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user without registrations, in a folder with a package of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{package}.py").write_text(
        "from tests.toy import ToySimulator\n\n\nclass Point(ToySimulator):\n    pass\n\n\nNOT_ONE = 3\n"
    )
    (tmp_path / "words.json").write_text(json.dumps(WORDS))
    (tmp_path / "point.task").write_text(TASK)
    return package


def register(package: str, name: str = "point", attribute: str = "Point", file: str = "words.json") -> int:
    return main(["sims", "register", name, "--module", f"{package}:{attribute}", "--vocabulary", file])


def test_check_vocabulary_completion_and_simulator(home, capsys):
    assert main(["check", "point.task"]) == 1 and "unknown simulator `point`" in capsys.readouterr().out
    assert register(home) == 0
    assert "registered point in" in capsys.readouterr().out and registrations_file().is_file()
    assert main(["check", "point.task"]) == 0
    assert "1 file: no errors" in capsys.readouterr().out
    Path("wrong.task").write_text(TASK.replace("raise(axis_1)", "rise(wall)"))
    assert main(["check", "wrong.task"]) == 1 and "did you mean `raise`?" in capsys.readouterr().out
    assert main(["vocabulary", "point"]) == 0
    assert "raise(axis)  =  above: move the point up" in capsys.readouterr().out
    text = 'sim point(scene="plane")\nplan '
    assert {"raise", "above"} <= {each.text for each in proposals(text, len(text))}
    assert "point" in {each.text for each in proposals("sim ", 4)}
    sim = make_simulator("point", [toy_task()], 3, dims=4)
    assert type(sim).__name__ == "Point" and sim.num_envs == 3


def test_list_and_remove(home, capsys):
    assert register(home) == 0 and register(home) == 0
    assert "registered point again" in capsys.readouterr().out
    assert main(["sims", "list"]) == 0
    out = capsys.readouterr().out
    assert "tabletop  built in: structrl.sims.tabletop:TabletopSimulator\n" in out
    assert f"point     registered: {home}:Point, {Path('words.json').resolve()}\n" in out
    assert "1 predicates, 1 verbs, 1 scenes" in out
    assert main(["sims", "remove", "point"]) == 0 and "point" not in simulators()
    assert main(["sims", "remove", "point"]) == 2


def test_an_edited_vocabulary_counts_at_once(home):
    assert register(home) == 0 and load_vocabulary("point").control_hz == 10
    file = Path("words.json")
    changed = file.stat().st_mtime_ns
    file.write_text(json.dumps({**WORDS, "control_hz": 50}))
    os.utime(file, ns=(changed + 10**9, changed + 10**9))
    assert load_vocabulary("point").control_hz == 50


def test_a_vocabulary_that_broke_or_went(home, capsys):
    assert register(home) == 0
    Path("words.json").write_text(json.dumps({**WORDS, "control_hz": "fast"}))
    assert main(["check", "point.task"]) == 1
    out = capsys.readouterr().out
    assert "error[T016]: the vocabulary of `point` cannot be used" in out
    assert 'control_hz: a number is expected, found "fast"' in out
    Path("words.json").unlink()
    assert main(["sims", "list"]) == 1
    assert "No such file or directory; it is the vocabulary of 'point'" in capsys.readouterr().out
    assert main(["vocabulary", "point"]) == 2


def test_a_broken_list_spoils_only_what_needs_it(home, capsys):
    registrations_file().parent.mkdir(parents=True)
    for text in (
        "{",
        "[]",
        '{"point": {"module": "a:B"}}',
        '{"point": {"module": "a:B", "vocabulary": 3}}',
        "[" * 100_000,
    ):
        registrations_file().write_text(text)
        assert main(["sims", "list"]) == 1
        assert f"{registrations_file()}: no list of simulators" in capsys.readouterr().err
        assert main(["check", "point.task"]) == 1 and "repair or delete it" in capsys.readouterr().out
        assert main(["check", "tabletop/pack_lunch"]) == 0
        assert proposals("sim ", 4) == []


@pytest.mark.parametrize(
    ("attribute", "message"),
    [("Pont", "has no 'Pont'"), ("NOT_ONE", "which is no class of structrl.sims.base.Simulator")],
)
def test_a_class_that_is_not_there(home, attribute, message):
    assert register(home, attribute=attribute) == 0
    with pytest.raises(ValueError, match=message):
        make_simulator("point", [toy_task()], 1)


def test_a_module_that_is_not_there(home):
    assert register("nowhere.at_all") == 0
    with pytest.raises(ValueError, match="there is no module 'nowhere': install it"):
        make_simulator("point", [toy_task()], 1)
    Path(f"{home}_2.py").write_text("import nowhere_else\n")
    assert register(f"{home}_2") == 0
    with pytest.raises(ModuleNotFoundError, match="nowhere_else"):  # the user's own bug keeps its traceback
        make_simulator("point", [toy_task()], 1)


def test_what_cannot_be_registered(home, capsys):
    def refused(code: int, message: str, **changes: str) -> None:
        assert register(**{"package": home, **changes}) == code
        assert message in capsys.readouterr().err

    refused(2, "'tabletop' is built in", name="tabletop")
    refused(2, "cannot be written in a task file", name="my-sim")
    refused(2, "cannot be written in a task file", name="plan")
    refused(1, "it is the vocabulary of 'point', not of 'dot'", name="dot")
    refused(1, "none.json: No such file", file="none.json")
    assert main(["sims", "register", "point", "--module", "a.b", "--vocabulary", "words.json"]) == 2
    Path("closed.json").write_text(json.dumps({**WORDS, "verbs": {"then": WORDS["verbs"]["raise"]}}))
    refused(1, "words of the task language cannot be predicates: then", file="closed.json")
    assert not registrations_file().exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: words["predicates"]["above"].update(args="axis"), "predicates.above.args: a list of texts"),
        (lambda words: words["predicates"]["above"].pop("meaning"), "predicates.above: 'meaning' is missing"),
        (lambda words: words["predicates"]["above"].update(treshold=1), "'treshold'; did you mean 'threshold'?"),
        (lambda words: words["predicates"]["above"].update(op="=<"), "predicates.above.op: '=<' is none of < <= >"),
        (lambda words: words["predicates"]["above"].update(pulse=1), "pulse: true or false is expected, found 1"),
        (lambda words: words["predicates"]["above"]["params"]["height"].update(unit="cm"), "'cm' is none of the SI"),
        (lambda words: words["predicates"]["above"]["params"].update(x=3), "params.x: an object {...} is expected"),
        (
            lambda words: words["predicates"]["above"].update(excludes=["below"]),
            "'above' excludes 'below', no predicate",
        ),
        (lambda words: words["verbs"]["raise"].update(predicate="abov"), "'abov'; did you mean 'above'?"),
        (lambda words: words.update(verbs=[]), 'verbs: {"NAME": ...} is expected, found []'),
        (lambda words: words.update(control_hz=0), "control_hz: 0 steps per second"),
        (lambda words: words.update(has_success=None), "has_success: true or false is expected, found null"),
        (lambda words: words["scenes"]["plane"].update(wall="thing"), "scenes.plane.wall: a list of texts"),
        (lambda words: words["verbs"].update({"move up": words["verbs"]["raise"]}), "verbs.move up: a word holds"),
    ],
)
def test_mistakes_in_a_vocabulary(change, message):
    words = copy.deepcopy(WORDS)
    change(words)
    with pytest.raises(ValueError) as error:
        parse_vocabulary(json.dumps(words), "words.json")
    assert str(error.value).startswith("words.json: ") and message in str(error.value)


@pytest.mark.parametrize("text", ["", "3", "[]", "null", "[" * 100_000])
def test_what_is_no_vocabulary(text):
    with pytest.raises(ValueError, match=r"words.json: (not JSON|an object)"):
        parse_vocabulary(text, "words.json")


def test_all_mistakes_at_once():
    words = {**copy.deepcopy(WORDS), "control_hz": "x", "has_success": 1}
    with pytest.raises(ValueError) as error:
        parse_vocabulary(json.dumps(words), "words.json")
    assert str(error.value).count("\n  ") == 2


def test_registering_imports_no_simulator(home):
    """Neither the user's module nor ours, and no torch."""
    script = (
        "import sys\nfrom structrl.cli import main\n"
        f"assert main(['sims', 'register', 'point', '--module', '{home}:Point', '--vocabulary', 'words.json']) == 0\n"
        "assert main(['sims', 'list']) == 0 and main(['check', 'point.task']) == 0\n"
        f"print(sorted({{'torch', 'mujoco', '{home}', 'structrl.sims.tabletop'}} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path.cwd()}"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_example_of_the_documentation(home, capsys):
    text = (ROOT / "docs" / "own_simulators.md").read_text().split("```json\n")[1].split("```")[0]
    Path("words.json").write_text(text)
    assert register(home) == 0 and main(["check", "point.task"]) == 0
    assert main(["vocabulary", "point"]) == 0 and "[pulse]" in capsys.readouterr().out
