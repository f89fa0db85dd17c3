"""The language's speed: start-up of `structrl check`, and parse and check against PDDL's `pddl` package.

    python -m benchmarks.language [--repeats 7] [--pddl PYTHON]

PYTHON is an interpreter that has `pddl`: `python3 -m venv /tmp/pddl && /tmp/pddl/bin/pip install pddl`, and then
`--pddl /tmp/pddl/bin/python`. Without it, that half is skipped. Both parsers read files that state a plan of the
same steps, about as many lines and characters long, each in a fresh process, with its parser built beforehand; lines
per second are medians of CPU time. `pddl` reads a problem (its own grammar, `lark` too) and checks types and names;
ours parses, checks names, kinds and units against the tabletop's vocabulary, expands and orders.
Start-up is that of every run but the very first, which builds the parser's tables and keeps them for the user.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from structrl.task import read_task

ROOT = Path(__file__).parent.parent
SIZES = (20, 60, 180)  # steps
OURS = """
import json, sys, time
from structrl.lang.check import check
from structrl.lang.parser import grammar, parse
grammar()
text = open(sys.argv[1], encoding="utf-8").read()
seconds, parsing = [], []
for _ in range(int(sys.argv[2])):
    start = time.process_time()
    parsed = parse(text)
    parsing.append(time.process_time() - start)
    checked = check(parsed, "f.task")
    seconds.append(time.process_time() - start)
assert not [each for each in checked.diagnostics if each.severity == "error"], checked.diagnostics
print(json.dumps([parsing, seconds]))
"""
THEIRS = """
import json, sys, time
from pddl.parser.problem import ProblemParser
problem = ProblemParser()
text = open(sys.argv[1], encoding="utf-8").read()
seconds = []
for _ in range(int(sys.argv[2])):
    start = time.process_time()
    problem(text)
    seconds.append(time.process_time() - start)
print(json.dumps([seconds, seconds]))
"""


# -- files of like size ----------------------------------------------------------------------------------------------
def task_text(steps: int) -> str:
    """A task file with `steps` subtasks, one a line."""
    header = 'task long\nsim tabletop(scene="lunch")\nhorizon 240 steps\nsuccess closed(box)\nplan\n  '
    names = ("apple", "drink")
    lines = [
        f"near({names[i % 2]}, box, dist={5 - i // 2 % 5}cm) and not grasped({names[i % 2]}) @ 40" for i in range(steps)
    ]
    return header + "\n  then ".join(lines) + "\n"


def pddl_text(steps: int) -> str:
    """A PDDL problem with `steps` pairs of goal literals, one pair a line, with objects and an initial state."""
    objects = "\n".join(f"    item_{i} - item" for i in range(steps // 2))
    init = "\n".join(f"    (on item_{i} table_1) (clear item_{i})" for i in range(steps // 2))
    goal = "\n".join(
        f"    (near item_{i % (steps // 2)} box_1) (not (grasped item_{i % (steps // 2)}))" for i in range(steps)
    )
    return (
        "(define (problem long)\n  (:domain pack)\n  (:requirements :strips :typing :negative-preconditions)\n"
        f"  (:objects box_1 - place table_1 - place\n{objects}\n  )\n  (:init\n{init}\n  )\n"
        f"  (:goal (and\n{goal}\n  ))\n)\n"
    )


# -- measuring -------------------------------------------------------------------------------------------------------
def command(files: list[str], repeats: int) -> tuple[list[float], list[float]]:
    """CPU and wall seconds of `structrl check FILES`, each in a process of its own."""
    cpu, wall = [], []
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(repeats + 1):
        before, start = os.times(), time.perf_counter()
        argv = [sys.executable, "-m", "structrl.cli", "check", *files]
        done = subprocess.run(argv, env=env, capture_output=True, text=True)
        wall.append(time.perf_counter() - start)
        after = os.times()
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
        if done.returncode:
            raise SystemExit(f"structrl check failed: {done.stdout[:500]}{done.stderr[:500]}")
    return cpu[1:], wall[1:]  # the first run reads modules from the disk


def per_call(python: str, script: str, path: Path, repeats: int) -> tuple[float, float]:
    """Median CPU seconds of one call: parsing alone, and with the checks. The script prints both lists."""
    argv = [python, "-c", script, str(path), str(repeats)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)} if script is OURS else None
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    parsing, whole = (statistics.median(each[1:]) for each in json.loads(done.stdout))
    return parsing, whole


def has_pddl(python: str | None) -> bool:
    """Whether `python` can import the package."""
    return python is not None and not subprocess.run([python, "-c", "import pddl"], capture_output=True).returncode


def start_up(folder: Path, repeats: int) -> None:
    """Print what one file and a hundred files cost."""
    _, shipped = read_task("tabletop/pack_lunch")
    names = []
    for i in range(100):
        names.append(str(folder / f"pack_{i}.task"))
        Path(names[-1]).write_text(shipped, encoding="utf-8")
    print(f"structrl check, {repeats} runs: median (least), seconds")
    for count in (1, 100):
        cpu, wall = command(names[:count], repeats)
        row = [
            f"{name} {statistics.median(each):.3f} ({min(each):.3f})" for name, each in (("CPU", cpu), ("wall", wall))
        ]
        print(f"  {count:>3} file{'s' if count > 1 else ' '}: {'  '.join(row)}")


def parse_speed(folder: Path, repeats: int, pddl: str | None) -> None:
    """Print lines per second of both."""
    print("parse and check, one file again and again: lines per second of CPU time")
    for steps in SIZES:
        row = []
        for name, text, python, script in (
            ("structrl", task_text(steps), sys.executable, OURS),
            ("pddl", pddl_text(steps), pddl, THEIRS),
        ):
            if python is None:
                continue
            path = folder / f"{name}_{steps}"
            path.write_text(text, encoding="utf-8")
            (parsing, seconds), lines = per_call(python, script, path, repeats), text.count("\n")
            row.append((name, lines, len(text), parsing, seconds))
        shown = [
            f"{name} {lines / seconds:,.0f} ({lines} lines, {size:,} characters, {1000 * seconds:.1f} ms, "
            f"{1000 * parsing:.1f} of them the parser)"
            for name, lines, size, parsing, seconds in row
        ]
        if len(row) == 2:
            (_, lines, size, _, ours), (_, their_lines, their_size, _, theirs) = row
            by_line, by_character = (lines / ours) / (their_lines / theirs), (size / ours) / (their_size / theirs)
            shown.append(f"ours / theirs: {by_line:.2f} by line, {by_character:.2f} by character")
        print(f"  {steps:>3} steps: {'; '.join(shown)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--pddl", metavar="PYTHON", help="an interpreter that has the `pddl` package")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        start_up(Path(name), args.repeats)
        if not has_pddl(args.pddl):
            print("no `pddl` package in the interpreter of --pddl: its half is skipped")
        parse_speed(Path(name), 2 * args.repeats, args.pddl if has_pddl(args.pddl) else None)


if __name__ == "__main__":
    main()
