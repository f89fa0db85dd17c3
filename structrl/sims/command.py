"""`structrl sims`: the simulators that structrl knows, and registering others. No simulator is imported."""

import argparse
import os
import re
import shutil
import sys
import time
from pathlib import Path

from structrl.lang.parser import RESERVED, keywords
from structrl.sims.install import install
from structrl.sims.installed import environment, installable, status
from structrl.sims.manifest import FILE
from structrl.sims.registrations import Registration, registered, registrations_file, save
from structrl.sims.registry import BUILTIN
from structrl.sims.vocabulary import Vocabulary, load_vocabulary, read_vocabulary
from structrl.sims.vocabulary_check import NAME

_MODULE = re.compile(rf"{NAME.pattern}(\.{NAME.pattern})*:{NAME.pattern}")


def main(argv: list[str]) -> int:
    """Run `structrl sims ...`: 0 done, 1 something is wrong with a simulator or its vocabulary, 2 wrong usage."""
    parser = argparse.ArgumentParser("structrl sims", description="The simulators that structrl knows.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="built-in and registered simulators, and what is wrong with them")
    add = commands.add_parser(
        "register",
        help="make a simulator of your own known",
        description="Make a simulator of your own known to check, vocabulary, the language server and training. "
        f"Kept in {registrations_file()}. Nothing is imported now; the module must be importable when it is used.",
    )
    add.add_argument("name", metavar="NAME", help="as task files say it: sim NAME")
    add.add_argument("--module", required=True, metavar="PKG.MOD:CLASS", help="a class of structrl.sims.base.Simulator")
    add.add_argument(
        "--vocabulary",
        required=True,
        type=Path,
        metavar="FILE.json",
        help="its words; manifest.json beside it: its scenes",
    )
    add.add_argument("--python", metavar="PATH", help="interpreter that has the module (default: structrl's own)")
    remove = commands.add_parser("remove", help="forget a registered simulator, or delete what was installed")
    remove.add_argument("name", metavar="NAME")
    make = commands.add_parser(
        "install",
        help="make the Python that one of structrl's simulators needs",
        description="Make a virtual environment with the pinned packages of a simulator, in the user's data folder.",
    )
    make.add_argument("name", metavar="NAME", help=" or ".join(installable()))
    make.add_argument("--python", metavar="PATH", help="interpreter to base it on, 3.10 to 3.13 (default: structrl's)")
    args = parser.parse_args(argv)
    try:
        if args.command == "register":
            return _register(args.name, args.module, args.vocabulary, args.python)
        if args.command == "install":
            return _install(args.name, args.python)
        return _remove(args.name) if args.command == "remove" else _list()
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}", 1)
    except ValueError as error:
        return _complain(str(error), 1)


def _install(name: str, python: str | None) -> int:
    print(f"installing {name} into {environment(name)}", flush=True)
    begin = time.monotonic()
    folder = install(name, python)
    print(f"installed {name} in {time.monotonic() - begin:.0f} s: {folder}")
    return 0


def _register(name: str, module: str, vocabulary: Path, python: str | None) -> int:
    if not NAME.fullmatch(name) or name in keywords() | RESERVED:
        return _complain(f"'{name}' cannot be written in a task file: use letters, digits and _", 2)
    if name in BUILTIN:
        return _complain(f"'{name}' is built in; choose another name", 2)
    if not _MODULE.fullmatch(module):
        return _complain(f"--module {module}: write PACKAGE.MODULE:CLASS", 2)
    if python is not None and not os.access(python, os.X_OK):
        return _complain(f"--python {python}: no such program", 2)
    words = read_vocabulary(vocabulary, vocabulary.parent / FILE)
    if words.sim != name:
        return _complain(f"{vocabulary}: it is the vocabulary of '{words.sim}', not of '{name}' (its key 'sim')", 1)
    closed = sorted((keywords() - {"in"} | RESERVED) & set(words.words))
    if closed:
        return _complain(f"{vocabulary}: words of the task language cannot be predicates: {', '.join(closed)}", 1)
    known = registered()
    again = "again " if name in known else ""
    # not resolved: the interpreter of a virtual environment is a link, and what it is called counts
    interpreter = "" if python is None else os.path.abspath(python)
    save({**known, name: Registration(module, str(vocabulary.resolve()), interpreter)})
    print(f"registered {name} {again}in {registrations_file()}: {_size(words)}")
    return 0


def _remove(name: str) -> int:
    known = registered()
    if name in installable() and environment(name).exists():
        shutil.rmtree(environment(name))
        print(f"deleted {environment(name)}")
        return 0
    if name not in known:
        return _complain(f"'{name}' is neither registered nor installed; there are: {', '.join(known) or 'none'}", 2)
    save({other: each for other, each in known.items() if other != name})
    print(f"removed {name} from {registrations_file()}")
    return 0


def _list() -> int:
    code = 0
    rows = [(name, "built in", module, "") for name, module in BUILTIN.items() if name not in installable()]
    for name in installable():
        how = "" if (state := status(name)) == "installed" else f"; make its Python: structrl sims install {name}"
        rows.append((name, f"built in, {state}", BUILTIN[name], f", {environment(name)}{how}"))
    for name, each in registered().items():
        rows.append((name, "registered", each.module, f", {each.vocabulary}" + (each.python and f", {each.python}")))
    width = max(len(name) for name, *_ in rows)
    for name, kind, module, file in rows:
        try:
            about = _size(load_vocabulary(name))
        except ValueError as error:
            about, code = f"error: {error}", 1
        print(f"{name:<{width}}  {kind}: {module}{file}\n{'':<{width}}  {about}")
    return code


def _size(words: Vocabulary) -> str:
    return f"{len(words.predicates)} predicates, {len(words.verbs)} verbs, {len(words.scenes)} scenes"


def _complain(message: str, code: int) -> int:
    print(f"structrl sims: error: {message}", file=sys.stderr)
    return code
