"""structrl doctor: failures of probes become findings with a remedy; the exit code; one whole run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from structrl.doctor import command
from structrl.doctor.command import accelerator, main, opengl, simulators
from structrl.doctor.probes import PROBES, ProbeError, probe

ROOT = Path(__file__).resolve().parents[2]
TORCH = {"threads": 1, "cuda_build": None, "gpus": [], "nccl": False, "gloo": True, "imported": []}
GPU = {"name": "T", "free": 2**30, "total": 2**34, "ok": True, "sm": "9.0"}
PICTURE = {"driver": "NVIDIA H200", "ms": 1.0, "drawn": True}
TRIAL = {"start_s": 1.0, "step_ms": 0.5, "observe_ms": 2.0, "observation": {"state": [3]}, "finite": True}


@pytest.fixture
def answers(monkeypatch):
    """What each probe answers; an exception is raised."""
    given = {"torch": TORCH, "egl": {"devices": 2}, "render": PICTURE, "simulator": TRIAL}

    def fake(what, *arguments, timeout, environment=None):
        if isinstance(given[what], Exception):
            raise given[what]
        return given[what]

    monkeypatch.setattr(command, "probe", fake)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    return given


def levels(findings):
    return {f.name: f.level for f in findings}


def test_gpus(answers):
    answers["torch"] = TORCH | {"gpus": [GPU, GPU | {"ok": False}], "cuda_build": "12.8"}
    assert levels(accelerator()) == {"torch": "ok", "GPU 0": "ok", "GPU 1": "error"}
    answers["torch"] = ProbeError("undefined symbol")
    (found,) = accelerator()
    assert found.level == "error" and "undefined symbol" in found.text and found.remedy


def test_opengl(answers, monkeypatch):
    assert levels(opengl()) == {"EGL devices": "ok", "a picture": "ok"}
    answers["render"] = PICTURE | {"driver": "llvmpipe (LLVM 15)"}
    assert levels(opengl())["a picture"] == "note"
    answers["render"] = PICTURE | {"drawn": False}
    assert levels(opengl())["a picture"] == "error"
    answers["render"] = answers["egl"] = ProbeError("Cannot initialize a EGL device display")
    found = list(opengl())
    assert levels(found) == {"EGL devices": "warn", "a picture": "warn"}
    assert all(f.remedy for f in found)


def test_no_display_and_no_backend_is_said(answers, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.delenv("DISPLAY", raising=False)
    found = {f.name: f for f in opengl()}
    assert found["MUJOCO_GL"].level == "warn" and "export MUJOCO_GL=egl" in found["MUJOCO_GL"].remedy


def test_simulators(answers, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert levels(simulators([]))["tabletop"] == "ok"
    for bad in (TRIAL | {"finite": False}, ProbeError("no module named 'x'")):
        answers["simulator"] = bad
        (found,) = (f for f in simulators([]) if f.name == "tabletop")
        assert found.level == "error" and found.remedy
    (found,) = (f for f in simulators([str(tmp_path / "no.task")]) if f.name.endswith("no.task"))
    assert found.level == "error"


def test_a_registered_simulator_is_tried_with_a_task_of_it(answers, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = {"sim": "mine", "scenes": {}, "predicates": {}, "verbs": {}}
    (tmp_path / "structrl").mkdir()
    (tmp_path / "words.json").write_text(json.dumps(words))
    registration = {"mine": {"module": "mine.sim:Sim", "vocabulary": str(tmp_path / "words.json")}}
    (tmp_path / "structrl" / "simulators.json").write_text(json.dumps(registration))
    found = {f.name: f for f in simulators([])}
    assert found["mine"].level in ("note", "error")  # a note, or what is wrong with so poor a vocabulary
    (tmp_path / "structrl" / "simulators.json").write_text("{")
    assert levels(simulators([]))["registered ones"] == "error"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("raise ValueError('the lid is missing')", "ValueError: the lid is missing"),
        ("import os; os.kill(os.getpid(), 11)", "ended by signal 11"),
        ("import time; time.sleep(60)", "no answer within 2 s"),
    ],
)
def test_a_probe_that_fails_crashes_or_hangs(body, wanted, monkeypatch):
    """A real process: its module is replaced by `body`."""
    monkeypatch.setattr(sys, "path", sys.path)
    original = subprocess.run

    def run(argv, **kwargs):
        return original([sys.executable, "-c", body], **kwargs)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ProbeError, match=wanted):
        probe("torch", timeout=2)


def test_a_simulator_that_is_not_installed_is_no_mistake(answers, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(command, "versions", lambda: iter(()))
    assert main(["--run", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "note  libero: built in; its own Python is not installed" in out and "structrl sims install libero" in out


def test_the_exit_code(answers, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(command, "versions", lambda: iter(()))
    assert main(["--run", str(tmp_path)]) == 0
    answers["simulator"] = ProbeError("it burns")
    assert main(["--run", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "it burns" in out and out.splitlines()[-1].startswith("-- 1 error")


@pytest.mark.heavy
def test_the_real_probes(tmp_path):
    """Everything as it is on this machine: each probe answers, and the built-in simulator works."""
    assert set(PROBES) == {"torch", "egl", "render", "simulator"}
    done = subprocess.run(
        [sys.executable, "-m", "structrl.cli", "doctor", "--run", str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    assert "ok    torch: built for" in done.stdout
    assert "ok    tabletop: built in" in done.stdout
    assert "ms a step" in done.stdout
