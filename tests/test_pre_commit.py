"""The hooks that other projects use, run by pre-commit itself on a throw-away repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
UGLY, TIDY = "group<a(x);b(x)>then c(x)", "group < a(x); b(x) > then c(x)\n"


def run(repository: Path, *command: str) -> subprocess.CompletedProcess[str]:
    home = repository.parent
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))},
        "HOME": str(home),
        "PRE_COMMIT_HOME": str(home / "cache"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, env=env)


@pytest.fixture
def repository(tmp_path):
    """A git repository whose hooks are ours by repository and revision, as a user writes them."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "structrl"  # what an installed structrl puts on the path
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m structrl.cli "$@"\n')
    command.chmod(0o755)
    hooks = tmp_path / "hooks"  # our repository, as far as pre-commit reads it
    folder = tmp_path / "project"
    for each in (hooks, folder):
        each.mkdir()
        run(each, "git", "init", "-q")
    (hooks / ".pre-commit-hooks.yaml").write_bytes((ROOT / ".pre-commit-hooks.yaml").read_bytes())
    run(hooks, "git", "add", ".")
    run(hooks, "git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "hooks")
    revision = run(hooks, "git", "rev-parse", "HEAD").stdout.strip()
    # `language: system`: the hook's own environment would be an installation of torch.
    used = [{"id": each, "language": "system"} for each in ("structrl-check", "structrl-fmt")]
    config = {"repos": [{"repo": str(hooks), "rev": revision, "hooks": used}]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    return folder


def hooks(repository: Path) -> tuple[int, str]:
    run(repository, "git", "add", ".")
    done = run(repository, sys.executable, "-m", "pre_commit", "run", "--all-files", "--color=never")
    return done.returncode, done.stdout + done.stderr


def test_hooks_stop_a_bad_file_and_format_an_ugly_one(repository):
    task = repository / "demo.task"
    (repository / "notes.txt").write_text("a(x")  # not a task file: left alone
    task.write_text(UGLY)
    code, printed = hooks(repository)
    assert code == 1 and "structrl-fmt" in printed and "formatted demo.task" in printed
    assert task.read_text() == TIDY
    code, printed = hooks(repository)
    assert code == 0 and printed.count("Passed") == 2
    task.write_text(TIDY.replace("c(x)", "c(x"))
    code, printed = hooks(repository)
    assert code == 1 and "demo.task:1:28: error[T001]: this parenthesis is not closed" in printed


def test_hook_definitions_are_valid():
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
