"""Entity lists of scenes: LIBERO's, and those of registered simulators."""

import copy
import json
import os
import sys
from pathlib import Path

import pytest

from structrl.cli import main
from structrl.lang.check import check
from structrl.lang.parser import parse
from structrl.sims.manifest import parse_manifest
from structrl.sims.vocabulary import load_vocabulary, read_vocabulary
from structrl.task import parse_task
from tests.lang.toy import VOCABULARY_JSON

ROOT = Path(__file__).parent.parent.parent
LIBERO = load_vocabulary("libero")
SUITES = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}
MANIFEST = {
    "sim": "tabletop",
    "source": "by hand",
    "entities": {"a": {"cup_1": ["object"], "tray_1": ["container"]}},
    "scenes": {"tea": {"entities": "a", "success": "in(cup_1, tray_1)"}, "cake": {"entities": "a", "title": "Cake"}},
}


def findings(text: str, vocabulary=None) -> list[str]:
    found = check(parse(text), "f.task", vocabulary).diagnostics
    return [f"{each.severity} {each.code}: {each.message} / {each.help}" for each in found]


# -- LIBERO ----------------------------------------------------------------------------------------------------------
def test_all_tasks_of_the_five_suites():
    assert set(LIBERO.scenes) == {f"{suite}/{i}" for suite, count in SUITES.items() for i in range(count)}
    titles = [LIBERO.title(scene) for scene in LIBERO.scenes]
    assert len(set(titles)) == 130
    assert LIBERO.title("libero_10/8") == "KITCHEN_SCENE8_put_both_moka_pots_on_the_stove"
    assert LIBERO.title("libero_spatial/0").startswith("pick_up_the_black_bowl_between_the_plate_and_the_ramekin")


@pytest.mark.parametrize("scene", LIBERO.scenes)
def test_entities_and_success_of_a_task(scene):
    """LIBERO's goal is a task that checks, and every word has something in some scene to be said of."""
    entities = LIBERO.scenes[scene]
    for name, kinds in entities.items():
        assert "thing" in kinds and len({"object", "fixture", "region"} & set(kinds)) == 1
        assert ("switch" in kinds) == name.startswith("flat_stove_") * (not name.endswith("region"))
    suite, task = scene.split("/")
    text = f'sim libero(suite="{suite}", task={task})\nhorizon 300 steps\nplan {LIBERO.success(scene)}'
    spec = parse_task(text)
    assert spec.success is None and spec.sim_args == {"suite": suite, "task": int(task)}
    assert all(set(atom.args) <= set(entities) for atom in spec.atoms)


def test_every_word_of_libero_fits_some_entity():
    kinds = {kind for entities in LIBERO.scenes.values() for each in entities.values() for kind in each}
    assert kinds == {"thing", "object", "fixture", "region", "place", "openable", "switch"}
    for word in LIBERO.words:
        assert set(LIBERO.kinds(word)) <= kinds


def test_what_libero_would_not_move_is_not_openable():
    """Asked of LIBERO itself: a microwave's inside and a cabinet's top have no joint, so they are always closed."""
    for entities in LIBERO.scenes.values():
        for name, kinds in entities.items():
            assert not ("openable" in kinds and name.endswith(("heating_region", "top_side", "cook_region")))
    assert "openable" in LIBERO.scenes["libero_10/9"]["microwave_1"]


def test_opposites_in_one_group_are_caught():
    head = 'sim libero(suite="libero_10", task=3)\nhorizon 300 steps\nplan '
    drawer = "white_cabinet_1_bottom_region"
    assert any("T052" in each for each in findings(f"{head} group < open({drawer}) @ 1; close({drawer}) @ 1 >"))
    assert any("T050" in each for each in findings(f"{head} (open({drawer}) and closed({drawer})) @ 1"))
    head = 'sim libero(suite="libero_10", task=8)\nhorizon 300 steps\nplan '
    stove = "flat_stove_1"
    assert any("T052" in each for each in findings(f"{head} group < turn_on({stove}) @ 1; turn_off({stove}) @ 1 >"))


def test_liberos_own_success_is_known():
    head = 'sim libero(suite="libero_10", task=3)\nhorizon 300 steps\nplan '
    goal = "put(akita_black_bowl, white_cabinet_1_bottom_region) @ 3 then close(white_cabinet_1_bottom_region) @ 3"
    assert findings(head + goal) == []
    (found,) = findings(head + goal + " then lift(wine_bottle) @ 3")
    assert "T055: `lift_wine_bottle` comes too late" in found or "T054: libero's own check" in found


@pytest.mark.parametrize(
    ("sim", "message"),
    [
        ('libero(suite="libero_11", task=2)', "no suite `libero_11` / did you mean `libero_10`?"),
        ('libero(suite="libero_10", task=10)', "no task `10` / there are: 0 to 9"),
        ('libero(suite="libero_10", task="two")', "no task `two` / there are: 0 to 9"),
        ('libero(suite="libero_90")', "needs `task=`, which says what is in the scene / for example task=0"),
        ("libero", 'needs `suite=`, which says what is in the scene / for example suite="libero_10"; there are:'),
    ],
)
def test_wrong_scenes(sim, message):
    (found,) = (each for each in findings(f"sim {sim}\nplan grasp(nothing)") if each.startswith("error"))
    assert "T016" in found and message in found


def site_packages() -> Path | None:
    """Where LIBERO is installed: STRUCTRL_LIBERO names the folder, if it is not this interpreter's."""
    named = os.environ.get("STRUCTRL_LIBERO")
    folders = [Path(named)] if named else [Path(each) for each in sys.path]
    return next((each for each in folders if (each / "libero" / "libero" / "bddl_files").is_dir()), None)


needs_libero = pytest.mark.skipif(site_packages() is None, reason="LIBERO's files: STRUCTRL_LIBERO=SITE_PACKAGES")


@needs_libero
def test_the_manifest_is_what_the_files_give():
    from scripts import libero_manifest

    installed = site_packages()
    assert installed is not None
    shipped = (ROOT / "structrl" / "sims" / "libero" / "manifest.json").read_text(encoding="utf-8")
    assert libero_manifest.text(libero_manifest.manifest(installed)) == shipped


@needs_libero
def test_all_problems_are_imported(tmp_path, capsys):
    """Each of the 130 files becomes a task that `check` passes, with its suite and task."""
    installed = site_packages()
    assert installed is not None
    files = []
    for scene in LIBERO.scenes:
        suite, task = scene.split("/")
        source = installed / "libero" / "libero" / "bddl_files" / suite / f"{LIBERO.title(scene)}.bddl"
        files.append(tmp_path / f"{suite}_{task}.task")
        assert main(["import", "bddl", str(source), "--output", str(files[-1])]) == 0
        assert f'sim     libero(suite="{suite}", task={task})\n' in files[-1].read_text()
    assert "note" not in capsys.readouterr().err
    assert main(["check", *map(str, files)]) == 0
    assert "130 files: no errors, 260 warnings" in capsys.readouterr().out  # no durations, no horizon


# -- manifests beside other vocabularies -----------------------------------------------------------------------------
def vocabulary(folder: Path, manifest: dict | None = MANIFEST, **changes) -> Path:
    words = {key: value for key, value in VOCABULARY_JSON.items() if key != "scenes"}
    (folder / "words.json").write_text(json.dumps({**words, **changes}))
    if manifest is not None:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder / "words.json"


def read(folder: Path, *args, **kwargs):
    return read_vocabulary(vocabulary(folder, *args, **kwargs), folder / "manifest.json")


def test_a_manifest_gives_the_scenes(tmp_path):
    words = read(tmp_path)
    assert words.scenes["tea"] == words.scenes["cake"] == {"cup_1": ("object",), "tray_1": ("container",)}
    assert words.title("cake") == "Cake" and words.success("tea") == "in(cup_1, tray_1)" and words.complete
    plan = "horizon 9 steps plan add(cup, tray) @ 1"
    assert findings(f'sim tabletop(scene="tea") success in(cup, tray) {plan}', words) == []
    (wrong,) = findings(f'sim tabletop(scene="tee") success in(cup, tray) {plan}', words)
    assert "no scene `tee` / did you mean `tea`?" in wrong


def test_where_there_is_no_list_check_says_so(tmp_path):
    text = 'sim tabletop(scene="pie") success in(cup, plate) horizon 9 steps plan add(cup, plate) @ 1'
    (none,) = findings(text, read(tmp_path, None))
    (partial,) = findings(text, read(tmp_path, {**MANIFEST, "partial": True}))
    assert none.startswith("note T017: the objects are not checked: there is no list of them for `tabletop`")
    assert partial.startswith("note T017") and "for this scene of `tabletop`" in partial
    assert "error T010" in findings(text.replace("add", "ad"), read(tmp_path, None))[0], (
        "words are checked all the same"
    )


def test_a_success_that_cannot_be_used_is_named(tmp_path):
    for success in ("in(cup_1", "in(cup_2, tray_1)", "plan in(cup_1, tray_1)"):
        manifest = copy.deepcopy(MANIFEST)
        manifest["scenes"]["tea"]["success"] = success
        words = read(tmp_path, manifest, has_success=True)
        found = findings('sim tabletop(scene="tea") horizon 9 steps plan add(cup, tray) @ 1', words)
        assert any("T016" in each and "cannot be used" in each and success in each for each in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(sim="other"), "manifest.json: it is of 'other', and the vocabulary beside it of"),
        (lambda data: data["scenes"]["tea"].update(entities="aa"), "scenes.tea.entities: there is no list 'aa'; did"),
        (
            lambda data: data["scenes"]["tea"].update(titel="x"),
            "scenes.tea: unknown key 'titel'; did you mean 'title'?",
        ),
        (lambda data: data["scenes"].update({"a/b": {"entities": "a"}}), "scene 'a/b': SCENE is expected"),
        (lambda data: data["entities"]["a"].update(cup_1="object"), "entities.a.cup_1: a list of texts is expected"),
        (lambda data: data.pop("source"), "'source' is missing"),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    data = copy.deepcopy(MANIFEST)
    change(data)
    with pytest.raises(ValueError) as error:
        read(tmp_path, data)
    assert message in str(error.value)


def test_a_scene_in_both_files(tmp_path):
    with pytest.raises(ValueError, match="scene 'tea' is in the vocabulary too"):
        read(tmp_path, scenes={"tea": {}})
    assert set(read(tmp_path, scenes={"pie": {}}).scenes) == {"pie", "tea", "cake"}


@pytest.mark.parametrize("text", ["", "3", "[]", "null", "[" * 100_000, '{"sim": ' + "1" * 5000 + "}"])
def test_what_is_no_manifest(text):
    with pytest.raises(ValueError, match=r"m.json: (not JSON|an object|\n)"):
        parse_manifest(text, "m.json")


def test_files_have_bounds(tmp_path):
    for name in ("words.json", "manifest.json"):
        vocabulary(tmp_path)
        (tmp_path / name).write_bytes(b" " * 4_000_001)
        with pytest.raises(ValueError, match=f"{name}: more than 4,000,000 bytes"):
            read_vocabulary(tmp_path / "words.json", tmp_path / "manifest.json")
        (tmp_path / name).write_bytes(b"\xff")
        with pytest.raises(ValueError, match=f"{name}: byte 0 is not UTF-8"):
            read_vocabulary(tmp_path / "words.json", tmp_path / "manifest.json")


def test_a_registered_simulator_has_one_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    vocabulary(tmp_path, {**MANIFEST, "sim": "other"})
    register = ["sims", "register", "tea", "--module", "a.b:C", "--vocabulary", "words.json"]
    words = {**json.loads(Path("words.json").read_text()), "sim": "tea", "scene_args": ["where", "what"]}
    Path("words.json").write_text(json.dumps(words))
    assert main(register) == 1 and "manifest.json: it is of 'other'" in capsys.readouterr().err
    scene = MANIFEST["scenes"]["tea"]
    Path("manifest.json").write_text(json.dumps({**MANIFEST, "sim": "tea", "scenes": {"home/tea": scene}}))
    assert main(register) == 0
    Path("a.task").write_text(
        'sim tea(where="home", what="tea")\nhorizon 9 steps\nsuccess in(cup, tray)\nplan add(cup, tray) @ 2\n'
    )
    assert main(["check", "a.task"]) == 0 and capsys.readouterr().out.endswith("1 file: no errors\n")
    Path("manifest.json").write_text(json.dumps({**MANIFEST, "sim": "tea", "scenes": {"out/tea": scene}}))
    changed = Path("manifest.json").stat().st_mtime_ns
    os.utime("manifest.json", ns=(changed + 10**9, changed + 10**9))
    assert main(["check", "a.task"]) == 1 and "no where `home`" in capsys.readouterr().out
    assert main(["vocabulary", "tea", "out/tea"]) == 0 and "cup_1: object" in capsys.readouterr().out
    assert main(["vocabulary", "tea", "out/tee"]) == 2 and "did you mean 'out/tea'?" in capsys.readouterr().err
