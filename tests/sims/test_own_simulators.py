"""Simulators outside of structrl, as docs/own_simulators.md has them: its commands are run here."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from structrl.cli import main
from structrl.envs import EnvConfig, make_env
from structrl.sims.base import Start
from structrl.sims.chunks import ChunkRunner
from structrl.sims.registry import make_simulator
from structrl.task import load_task

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/own_simulators.md").read_text(), re.S)
MODULES = ("puck", "corridor")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Goes to a copy of an example, as a user without registrations."""

    def go(name):
        shutil.copytree(ROOT / "examples" / name, tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.syspath_prepend(str(tmp_path / name))
        return tmp_path / name

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    yield go
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("block", BLOCKS, ids=[b.split()[1].rsplit("/")[-1] for b in BLOCKS])
def test_the_commands_of_the_documentation(folder, block, capsys):
    enter, path, *commands = block.splitlines()
    assert path == "export PYTHONPATH=."
    project = folder(enter.removeprefix("cd examples/"))
    assert [command.split()[1] for command in commands if "sims list" not in command] == [
        "sims", "check", "vocabulary", "fit",
    ]  # fmt: skip
    for command in commands:
        program, *argv = shlex.split(command)
        assert program == "structrl"
        assert main(argv) == 0, f"{command}\n{capsys.readouterr()}"
    assert list(project.glob("run/**/*.ckpt")), "nothing was trained"


def start(e):
    return Start(0, -1, (3, 1, 0, e))


@pytest.mark.parametrize(
    ("name", "sim", "task", "action", "register"),
    [
        ("own_simulator", "puck", "round_trip", [-1.0, 0.5], "puck:Puck"),
        ("gymnasium_simulator", "corridor", "leave", [1.0], "structrl.sims.gymnasium:GymnasiumSimulator"),
    ],
)
def test_episodes_and_states(folder, name, sim, task, action, register):
    folder(name)
    assert main(["sims", "register", sim, "--module", register, "--vocabulary", f"{sim}.json"]) == 0
    spec = load_task(f"{task}.task")
    runner, other = (ChunkRunner(make_simulator(sim, [spec], 3), record=True) for _ in range(2))
    runner.reset(np.arange(3), [start(e) for e in range(3)])
    action = np.broadcast_to(np.float32(action), (3, 4, len(action)))
    runner.run(action)
    other.reset(np.arange(3), [start(9)] * 3)
    other.set_state(np.array([0, 2]), runner.state(np.array([1, 2])))
    reached = False
    while not runner.done.all():
        a, b = runner.run(action), other.run(action)
        reached |= a.holds[..., 0].any()
        np.testing.assert_array_equal(a.holds[1:], b.holds[[0, 2]])
        np.testing.assert_array_equal(a.values[1:], b.values[[0, 2]])
        for key, seen in runner.observe(np.array([1, 2])).items():
            np.testing.assert_array_equal(seen, other.observe(np.array([0, 2]))[key])
    assert reached, "the first subtask is never reached"
    if sim == "corridor":
        assert runner.success.all() and runner.t.max() < 20, "its own success check is not used"


def test_a_gymnasium_environment_that_does_not_report(folder):
    gymnasium = pytest.importorskip("gymnasium")
    folder("gymnasium_simulator")
    assert main([
        "sims", "register", "corridor", "--module", "structrl.sims.gymnasium:GymnasiumSimulator",
        "--vocabulary", "corridor.json",
    ]) == 0  # fmt: skip
    text = Path("leave.task").read_text()
    for change, message in [
        (("corridor:Corridor-v0", "CartPole-v1"), "actions must be a vector with bounds"),
        (("corridor:Corridor-v0", "Pendulum-v1"), "`info` has no 'atoms'; it has: nothing"),
        (
            ("reached(door)", "reached(dor)"),
            r"info\['atoms'\] has no 'reached\(dor\)', which .*did you mean 'reached\(door\)'",
        ),
    ]:
        Path("other.task").write_text(text.replace(*change))
        with pytest.raises(ValueError, match=message):
            make_simulator("corridor", [load_task("other.task")], 1).reset(np.arange(1), [start(0)])
    with pytest.raises(gymnasium.error.Error):
        Path("other.task").write_text(text.replace("Corridor-v0", "Coridor-v0"))
        make_simulator("corridor", [load_task("other.task")], 1)


def test_a_python_of_its_own(folder, tmp_path):
    """Registered with an interpreter, which has the module in its own path."""
    project = folder("own_simulator")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={project} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ["--module", "puck:Puck", "--vocabulary", "puck.json"]
    assert main(["sims", "register", "puck", "--python", str(tmp_path / "none"), *words]) == 2
    assert main(["sims", "register", "puck", "--python", os.path.relpath(python), *words]) == 0
    env = make_env(EnvConfig(["round_trip.task"], num_envs=2, chunk=4))
    try:
        assert env.runner._python == str(python) and len(env.runner._processes) == 1
        assert env.rand_step(env.reset())["next", "steps"].flatten().tolist() == [4, 4]
    finally:
        env.close()
