import io
import json
import subprocess
import sys

import pytest

from structrl.cli import main
from structrl.lang.commands import _describe
from tests.lang.toy import ANCHOR, VOCABULARY

UGLY = "group<a(x);b(x)>then c(x)"
TIDY = "group < a(x); b(x) > then c(x)\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.task").write_text(ANCHOR)
    (tmp_path / "bad.task").write_text("a(x) then\n  b(x) after frist")
    (tmp_path / "ugly.task").write_text(UGLY)
    return tmp_path


def stdin(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data))


def test_check_text(files, capsys):
    assert main(["check", "good.task"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("good.task:1:1: note[T017]: without a `sim` line") and out.endswith(
        "1 file: no errors, 1 note\n"
    )
    assert main(["check", "good.task", "bad.task"]) == 1
    out = capsys.readouterr().out
    assert out[out.index("bad.task") :].startswith(
        "bad.task:2:14: error[T021]: unknown label `frist`\n2 |   b(x) after frist\n  |              ^^^^^\n"
    )
    assert out.endswith("2 files: 1 error, 1 note\n")


def test_check_folders_and_stdin(files, capsys, monkeypatch):
    assert main(["check", "."]) == 1
    assert "3 files: 1 error" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", stdin(b"a(x"))
    assert main(["check", "-"]) == 1
    assert capsys.readouterr().out.startswith("<stdin>:1:2: error[T001]: this parenthesis is not closed")


def test_check_json_and_github(files, capsys):
    assert main(["check", "--format", "json", "bad.task"]) == 1
    (record,) = json.loads(capsys.readouterr().out)
    help_ = record.pop("help")
    assert help_.startswith("the labels are") and record == {
        "file": "bad.task",
        "line": 2,
        "column": 14,
        "end_line": 2,
        "end_column": 19,
        "severity": "error",
        "code": "T021",
        "message": "unknown label `frist`",
    }
    assert main(["check", "--format", "github", "bad.task"]) == 1
    place = "file=bad.task,line=2,col=14,endLine=2,endColumn=19,title=T021"
    assert capsys.readouterr().out.startswith(f"::error {place}::unknown label `frist`")
    assert main(["check", "--format", "json", "good.task"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["severity"], record["code"], record["line"], record["column"]) == ("note", "T017", 1, 1)
    assert main(["check", "--format", "github", "good.task"]) == 0
    assert capsys.readouterr().out.startswith("::notice file=good.task,line=1,col=1,endLine=1,endColumn=2,title=T017::")
    assert main(["check", "--format", "github", "tabletop/pack_lunch"]) == 0
    assert capsys.readouterr().out == ""


def test_missing_files_and_wrong_usage(files, capsys):
    assert main(["check", "none.task", "good.task"]) == 2
    assert "structrl check: error: none.task: no task file 'none.task'" in capsys.readouterr().err
    assert main(["fmt", "none.task"]) == 2
    for argv in (["check"], ["check", "--format", "xml", "good.task"], ["fmt"]):
        with pytest.raises(SystemExit) as stop:
            main(argv)
        assert stop.value.code == 2


def test_fmt(files, capsys, monkeypatch):
    assert main(["fmt", "--check", "ugly.task"]) == 1
    assert capsys.readouterr().out == "would format ugly.task\n"
    assert main(["fmt", "--diff", "ugly.task"]) == 1
    assert f"-{UGLY}" in capsys.readouterr().out
    assert (files / "ugly.task").read_text() == UGLY
    monkeypatch.setattr("sys.stdin", stdin(UGLY.encode()))
    assert main(["fmt", "-"]) == 0
    assert capsys.readouterr().out == TIDY
    assert main(["fmt", "ugly.task"]) == 0
    assert (files / "ugly.task").read_text() == TIDY
    assert main(["fmt", "--check", "--diff", "ugly.task"]) == 0
    (files / "broken.task").write_text("a(x")
    assert main(["fmt", "broken.task"]) == 1
    assert (files / "broken.task").read_text() == "a(x"


def test_fmt_leaves_shipped_tasks_alone(files):
    assert main(["fmt", "tabletop/pack_lunch"]) == 2


def test_vocabulary(capsys):
    assert main(["vocabulary", "nope"]) == 2
    assert "no simulator 'nope'" in capsys.readouterr().err
    text = _describe(VOCABULARY)
    assert "  add(object, container)  =  in: put in\n" in text
    assert "  pressed(button): pushed in this step [pulse]\n      m < 0.1 m\n" in text
    assert "      dist= sets the threshold (default 0.05 m)\n" in text
    assert '\nscene "lunch"\n  apple_1: object\n' in text


def test_check_starts_fast_and_light(files):
    """Under half a second of CPU, and none of the heavy libraries."""
    script = (
        "import sys, time\nfrom structrl.cli import main\nassert main(['check', 'good.task']) == 0\n"
        "print(time.process_time())\n"
        "print(sorted({'torch', 'numpy', 'mujoco', 'lightning', 'tensordict', 'h5py'} & set(sys.modules)))"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=_path())
        *_, time, modules = done.stdout.splitlines()
        assert modules == "[]"
        seconds.append(float(time))
    assert min(seconds) < 0.5


def _path() -> dict[str, str]:
    import os
    from pathlib import Path

    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
