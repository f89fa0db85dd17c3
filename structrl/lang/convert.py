"""`structrl import`: task files from other formats. No torch, no simulator."""

import argparse
import sys
from pathlib import Path

from structrl.lang import bddl, stages
from structrl.lang.check import check
from structrl.lang.diagnostics import Diagnostic, TaskError, render
from structrl.lang.parser import parse
from structrl.sims.vocabulary import simulators

_EPILOG = """\
bddl    a LIBERO problem. Its goals become one group, as BDDL has no order; the command comes from (:language ...).
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
    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
        path = "stdin" if args.file == "-" else args.file
        remarks: list[str] = []
        if args.format == "bddl":
            task = bddl.convert(text, path)
        else:
            task, remarks = stages.convert(text, path)
    except OSError as error:
        return _complain(f"{args.file}: {error.strerror or error}", 2)
    except UnicodeDecodeError as error:
        return _complain(f"{args.file}: byte {error.start} is not UTF-8", 2)
    except TaskError as error:
        print(error, file=sys.stderr)
        return 1
    except (bddl.BddlError, stages.StagesError) as error:
        return _complain(f"{args.file}: {error}", 1)
    try:
        known = simulators()
    except ValueError as error:
        return _complain(str(error), 1)
    found, unchecked = _check(task, args.output or "<output>", "libero" if args.format == "bddl" else None, known)
    remarks += unchecked
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


def _check(task: str, path: str, sim: str | None, known: list[str]) -> tuple[list[Diagnostic], list[str]]:
    """Errors of the result, and what could not be checked."""
    errors = [each for each in check(parse(task, path), path).diagnostics if each.severity == "error"]
    if sim is None:
        return errors, ["names were not checked: the table names no simulator; add `sim` and `plan` lines"]
    if sim not in known:
        # The one error that follows from this is said here, in words that fit.
        errors = [each for each in errors if each.code != "T016"]
        return errors, [f"names were not checked: structrl has no vocabulary of {sim}, and `check` will say so"]
    return errors, []


def _complain(message: str, code: int) -> int:
    print(f"structrl import: error: {message}", file=sys.stderr)
    return code
