"""The dispatcher: every command exists, mistakes are answered, a closed pipe is no error message."""

import subprocess
import sys
from importlib import import_module

import pytest

from structrl.cli import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists(command):
    module, function, _ = COMMANDS[command]
    assert callable(getattr(import_module(module), function))


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {command} " in printed for command in COMMANDS)


def test_no_command_is_wrong_usage():
    assert main([]) == 2


def test_a_misspelt_command_is_suggested(capsys):
    assert main(["evalute"]) == 2
    assert "did you mean 'evaluate'?" in capsys.readouterr().err


def test_a_closed_pipe_is_quiet():
    program = f"{sys.executable} -m structrl.cli vocabulary tabletop | head -1"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tabletop") and done.stderr == ""
