"""`structrl import`: task files from other formats. No torch, no simulator."""

import argparse
import sys
from pathlib import Path

from structrl.hints import read_bounded
from structrl.lang import bddl, stages
from structrl.lang.check import check
from structrl.lang.diagnostics import TaskError, render
from structrl.lang.parser import parse
from structrl.lang.source import MAX_CHARACTERS
from structrl.sims.vocabulary import load_vocabulary

_EPILOG = """\
bddl    a LIBERO problem. Its goals become one group, as BDDL has no order; the command comes from (:language ...),
        suite and task from comparing name, goal and objects with those of LIBERO's 130 tasks.
stages  a JSON list of lists of names, [["a", "b"], ["c"]]: stages in order, the members of a stage in any order.
        An entry is a name, or a condition in the task language."""


def main(argv: list[str]) -> int:
    """Convert a file: 0 done, 1 it cannot be converted or the result has errors, 2 it cannot be read or written."""
    parser = argparse.ArgumentParser(
        "structrl import",
        description="Make a task file from another format.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("format", choices=("bddl", "stages"), help="what FILE holds")
    parser.add_argument("file", metavar="FILE", help="the file to convert, or - for stdin")
    parser.add_argument("--output", metavar="FILE", help="where to write the task file (default: print it)")
    args = parser.parse_args(argv)
    path = "stdin" if args.file == "-" else args.file
    try:
        text = _read(args.file)
    except OSError as error:
        return _complain(f"{args.file}: {error.strerror or error}", 2)
    except ValueError as error:
        return _complain(f"{args.file}: {error}", 2)
    try:
        if args.format == "bddl":
            task, remarks = bddl.convert(text, path, load_vocabulary("libero"))
        else:
            task, remarks = stages.convert(text, path)
            remarks.append("names were not checked: the table names no simulator; add `sim` and `plan` lines")
    except TaskError as error:
        print(error, file=sys.stderr)
        return 1
    except (bddl.BddlError, stages.StagesError) as error:
        return _complain(f"{args.file}: {error}", 1)
    found = [each for each in check(parse(task), args.output or "<output>").diagnostics if each.severity == "error"]
    if args.format == "bddl" and remarks:  # without suite and task; a remark says so in words that fit
        found = [each for each in found if each.code != "T016"]
    if args.output:
        try:
            Path(args.output).write_text(task, encoding="utf-8", newline="\n")
        except OSError as error:
            return _complain(f"{args.output}: {error.strerror or error}", 2)
    else:
        sys.stdout.write(task)
    for remark in remarks:
        print(f"structrl import: note: {remark}", file=sys.stderr)
    if found:
        print(render(found, task, args.output or "<output>"), file=sys.stderr)
    return int(bool(found))


def _read(name: str) -> str:
    """A file, or standard input.

    Raises:
        OSError: it cannot be read.
        ValueError: it has more than `MAX_CHARACTERS` bytes, or is not UTF-8.
    """
    if name == "-":
        return read_bounded(sys.stdin.buffer, MAX_CHARACTERS)
    with Path(name).open("rb") as file:
        return read_bounded(file, MAX_CHARACTERS)


def _complain(message: str, code: int) -> int:
    print(f"structrl import: error: {message}", file=sys.stderr)
    return code
