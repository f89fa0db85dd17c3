"""LIBERO's demonstration files. There are none here: a file of the same layout is written from scripted rollouts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from structrl.evaluate.episodes import EpisodeFile
from structrl.imitation import calibrate, demos
from structrl.imitation.libero_demos import read_libero
from structrl.sims.installed import own_python
from structrl.task import load_task

TASK = "libero_goal/turn_on_the_stove"
ROOT = Path(__file__).parents[2]


def libero_python() -> str:
    """LIBERO_PYTHON, or the installed one."""
    try:
        return os.environ.get("LIBERO_PYTHON") or str(own_python("libero"))
    except FileNotFoundError:
        pytest.skip("no Python with LIBERO: structrl sims install libero")


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory):
    """Two rollouts, and the file that LIBERO would have written of them."""
    python = libero_python()
    folder = tmp_path_factory.mktemp("libero")
    (folder / "task.json").write_text(load_task(TASK).to_json())
    command = [python, str(ROOT / "tests/imitation/libero_recorder.py"), "task.json", "rollouts.npz", "0", "7"]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    found = dict(np.load(folder / "rollouts.npz"))
    path = folder / "demo.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["bddl_file_name"] = f"libero/bddl_files/libero_goal/{found['bddl']}"
        data.attrs["problem_info"] = json.dumps({"language_instruction": "turn on the stove"})
        for i in range(2):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["model_file"], demo.attrs["num_samples"] = str(found[f"{i}.model"]), len(found[f"{i}.actions"])
            demo.attrs["init_state"] = found[f"{i}.states"][0]
            demo["states"], demo["actions"] = found[f"{i}.states"], found[f"{i}.actions"].astype(float)
            length = len(found[f"{i}.actions"])
            demo["dones"] = demo["rewards"] = (np.arange(length) == length - 1).astype(np.uint8)
    return python, path, found


def test_conditions_of_stored_states_are_those_of_the_rollout(rollouts):
    python, path, found = rollouts
    episodes = list(read_libero(path, load_task(TASK), python, {"tokens": True}))
    assert len(episodes) == 2
    for i, episode in enumerate(episodes):
        episode.check()
        # The last state is in no file: the last action was executed again.
        np.testing.assert_array_equal(episode.atoms, found[f"{i}.atoms"])
        np.testing.assert_array_equal(episode.holds, found[f"{i}.atoms"])  # a plan of one atom
        np.testing.assert_array_equal(episode.actions, found[f"{i}.actions"])
        assert episode.succeeded and not episode.success[:-1].any()
        assert episode.observation["tokens"].shape[0] == episode.length


def test_demos_and_calibrate_read_them(rollouts, tmp_path, capsys):
    python, path, found = rollouts
    out = tmp_path / "demos.h5"
    assert demos.main([TASK, "--from-libero", str(path), "--out", str(out), "--python", python]) == 0
    assert "2 demonstrations" in capsys.readouterr().out
    with EpisodeFile(out) as file:
        lengths = [episode.length for episode in file]
        measured = calibrate.measure(load_task(TASK), file)
    assert lengths == [len(found["0.actions"]), len(found["1.actions"])]
    assert measured[0].times == tuple(lengths)  # one subtask, which is the success


def test_fixtures_stand_where_the_file_says(rollouts, tmp_path):
    """A stove moved by 5 cm in the model's text moves in the observation."""
    python, path, _ = rollouts
    moved = tmp_path / "moved.hdf5"
    moved.write_bytes(path.read_bytes())
    with h5py.File(moved, "a") as file:
        demo = file["data/demo_0"]
        before = demo.attrs["model_file"]
        at = before.index('name="flat_stove_1_main"') if 'name="flat_stove_1_main"' in before else None
        assert at is not None
        pos = before.index('pos="', at) + 5
        x, *rest = before[pos : before.index('"', pos)].split()
        new = " ".join([str(float(x) + 0.05), *rest])
        demo.attrs["model_file"] = before[:pos] + new + before[before.index('"', pos) :]
    task = load_task(TASK)
    first, other = (next(read_libero(p, task, python, {"tokens": True})) for p in (path, moved))
    # token features 7 to 9: position in the workspace over 0.3 m
    difference = 0.3 * (other.observation["tokens"][0, 0, 7:10] - first.observation["tokens"][0, 0, 7:10])
    np.testing.assert_allclose(difference, [0.05, 0, 0], atol=1e-5)


def test_another_task_and_broken_files_are_refused(rollouts, tmp_path):
    python, path, _ = rollouts
    with pytest.raises(ValueError, match=r"demonstrations of turn_on_the_stove.bddl, but .* put_the_bowl"):
        list(read_libero(path, load_task("libero_goal/put_the_bowl_on_the_stove"), python, {}))
    broken = tmp_path / "broken.hdf5"
    broken.write_bytes(path.read_bytes())
    with h5py.File(broken, "a") as file:
        del file["data/demo_1/states"]
    with pytest.raises(ValueError, match="demo_1 is not as LIBERO writes it"):
        list(read_libero(broken, load_task(TASK), python, {}))


def test_what_is_no_file_of_demonstrations(tmp_path, capsys):
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("data")
    with pytest.raises(ValueError, match="no file of demonstrations"):
        list(read_libero(path, load_task(TASK), sys.executable, {}))
    with pytest.raises(FileNotFoundError):
        list(read_libero(tmp_path / "none.hdf5", load_task(TASK), sys.executable, {}))
    out = str(tmp_path / "o.h5")
    assert demos.main(["tabletop/pack_lunch", "--from-libero", str(path), "--out", out, "--python", "x"]) == 1
    assert "its simulator is 'tabletop'" in capsys.readouterr().err
