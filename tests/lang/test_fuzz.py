"""A short fuzz with a fixed seed, and what longer ones and reading for worst cases have found."""

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest

from structrl.cli import main
from structrl.lang.check import check
from structrl.lang.diagnostics import TaskError, render
from structrl.lang.format import format_source
from structrl.lang.parser import parse
from structrl.lang.scope import MAX_ERRORS
from structrl.task import decode, parse_task, read_task
from tests.lang import fuzz
from tests.lang.toy import VOCABULARY

# Text that was slow or took much memory, and the code of its first error. CPU seconds and MB before the repair:
WORST = {
    "unclosed text": ('command "' + "x " * 450_000, "T003"),  # 1.0 s, 890 MB
    "escaped quotes": ('command "' + '\\"' * 450_000, "T003"),  # minutes
    "comments": ("#ab\n" * 240_000 + "a(x)", "T003"),  # 2 s, and 5 s to format
    "long word": ("a" * 900_000 + " = =", "T003"),  # minutes
    "short of a word": ("a b = c " * 1_000 + " " * 900_000, "T001"),
    "blanks in `at least`": ("at" + " " * 900_000 + "q", "T001"),
    "unknown labels": ("plan " + " then ".join(f"a(x) as l{i} after lx{i}" for i in range(199)), "T021"),
    "circle of definitions": (
        "".join(f"define f{i}() = f{(i + 1) % 1200}()\n" for i in range(1200)) + "plan a()",  # 5 s
        "T023",
    ),
    "circle of subtasks": (
        f"group < {'; '.join(f'a(x) as l{i} after ' + ', '.join(f'l{j}' for j in range(60)) for i in range(60))} >",
        "T022",
    ),
    "odd characters": ("é" * 900_000, "T002"),
}
LARGE = {  # without errors of the parser
    "comments": ("#" + "x" * 90 + "\n") * 9_900 + "a(x)",
    "blank lines": "\n" * 990_000 + "a(x)",
    "arguments": "plan a(" + "x," * 4_900 + "x)",
    "deep and wide": "group < " * 95 + ";".join(["a(x)"] * 1_900) + " >" * 95,  # formatted in 1.3 s
    "condition": " and ".join(["a(x)"] * 1_900),
    "alike": 'sim tabletop(scene="lunch") plan '
    + " and ".join(f"near(apple_1, box_1, dist={i}cm)" for i in range(900)),  # 9 s, 210 MB
    "definitions": "define f0() = a()\n"
    + "".join(f"define f{i}() = f{i - 1}()\n" for i in range(1, 1_200))
    + "plan a()",
}
MARGIN = 2  # of the second: a busy machine's CPU seconds are longer


@pytest.mark.parametrize("name", WORST)
def test_worst_cases_are_refused_in_time(name: str):
    text, code = WORST[name]
    start = time.process_time()
    with pytest.raises(TaskError) as error:
        parse_task(text)
    assert time.process_time() - start < MARGIN * fuzz.SECONDS
    assert error.value.diagnostics[0].code == code


@pytest.mark.parametrize("name", LARGE)
def test_large_files_are_checked_and_formatted_in_time(name: str):
    start = time.process_time()
    check(parse(LARGE[name]), "large.task", VOCABULARY)
    middle = time.process_time()
    format_source(LARGE[name])
    assert middle - start < MARGIN * fuzz.SECONDS and time.process_time() - middle < MARGIN * fuzz.SECONDS


def test_memory():
    """The longest texts again, in a process of their own, whose peak is theirs."""
    script = (
        "from tests.lang import fuzz\nfrom tests.lang.test_fuzz import LARGE, WORST\n"
        "texts = [*(text for text, _ in WORST.values()), *LARGE.values()]\n"
        "for text in texts:\n    len(text) < 500_000 or fuzz.examine(text.encode())\n"
        "print(fuzz._peak())"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert float(done.stdout) < fuzz.MEGABYTES


def test_errors_are_bounded():
    text = 'sim tabletop(scene="lunch") plan a(x) ' + "".join(f'let l{i} = "nothing_{i}"\n' for i in range(1_500))
    found = check(parse(text), "f.task", VOCABULARY).diagnostics
    assert len(found) == MAX_ERRORS + 1
    assert any(each.code == "T003" and "the rest of the file" in each.message for each in found)


def test_rendering_many_findings_of_a_long_file_does_not_split_it_each_time():
    text = "\n" * 900_000 + "a(x) then b(x) after c then d(x) after e"
    start = time.process_time()
    assert render(check(parse(text), "f").diagnostics * 100, text, "f").count("f:900001:22: error[T021]") == 100
    assert time.process_time() - start < MARGIN * fuzz.SECONDS


@pytest.mark.parametrize(("data", "code"), [(b"a(x) \xff", "T002"), (b" " * 1_000_001, "T003"), (b"(", "T001")])
def test_stdin_of_any_kind(data: bytes, code: str, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    assert main(["check", "-"]) == 1
    assert f"error[{code}]" in capsys.readouterr().out


def test_no_more_of_a_file_is_read_than_is_allowed(tmp_path):
    endless = io.BytesIO(b" " * 3_000_000)
    with pytest.raises(TaskError, match="more than 1,000,000 bytes"):
        decode(endless, "endless")
    assert endless.tell() <= 1_000_001
    (tmp_path / "long.task").write_bytes(b"#" * 1_000_001)
    with pytest.raises(TaskError, match="T003"):
        read_task(tmp_path / "long.task")


def test_lone_surrogates_are_refused():
    with pytest.raises(TaskError, match="T002"):
        parse_task('command "\ud800" plan a(x)')


def test_a_condition_that_ends_in_a_long_word_points_at_it():
    with pytest.raises(TaskError) as error:
        parse("a(x) then " + "b" * 90 + "\n")
    assert error.value.diagnostics[0].span[:2] == (10, 100)


def test_short_fuzz():
    """A few seconds; `python -m tests.lang.fuzz --seconds 600` is the long one."""
    watch = fuzz.fuzz(seed=20, kinds=("tokens", "bytes"), seconds=60, runs=600)
    bombs = fuzz.fuzz(seed=21, kinds=("bombs",), seconds=60, runs=60)
    assert not watch.findings and not bombs.findings
    assert sum(watch.outcomes.values()) == 600 and sum(bombs.outcomes.values()) == 60
    assert {"task", "T001", "T002"} <= set(watch.outcomes) and "T003" in bombs.outcomes


def test_the_fuzzer_sees_what_breaks(monkeypatch):
    """The oracle can fail: a formatter that loses comments, and a crash."""
    watch = fuzz.Watch()
    monkeypatch.setattr(fuzz, "format_source", lambda text, path: "a(x)\n")
    watch.run(b"a(x) # note")
    monkeypatch.setattr(fuzz, "parse", lambda text, path: 1 / 0)
    watch.run(b"a(x)")
    assert [what.split(" ")[0] for what in watch.findings] == ["AssertionError", "ZeroDivisionError"]
