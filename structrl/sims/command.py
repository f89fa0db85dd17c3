"""`structrl sims`: the simulators that structrl knows, and registering others. No simulator is imported."""

import argparse
import re
import sys
from pathlib import Path

from structrl.lang.parser import RESERVED, keywords
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
    remove = commands.add_parser("remove", help="forget a registered simulator; its files stay")
    remove.add_argument("name", metavar="NAME")
    args = parser.parse_args(argv)
    try:
        if args.command == "register":
            return _register(args.name, args.module, args.vocabulary)
        return _remove(args.name) if args.command == "remove" else _list()
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}", 1)
    except ValueError as error:
        return _complain(str(error), 1)


def _register(name: str, module: str, vocabulary: Path) -> int:
    if not NAME.fullmatch(name) or name in keywords() | RESERVED:
        return _complain(f"'{name}' cannot be written in a task file: use letters, digits and _", 2)
    if name in BUILTIN:
        return _complain(f"'{name}' is built in; choose another name", 2)
    if not _MODULE.fullmatch(module):
        return _complain(f"--module {module}: write PACKAGE.MODULE:CLASS", 2)
    words = read_vocabulary(vocabulary, vocabulary.parent / FILE)
    if words.sim != name:
        return _complain(f"{vocabulary}: it is the vocabulary of '{words.sim}', not of '{name}' (its key 'sim')", 1)
    closed = sorted((keywords() - {"in"} | RESERVED) & set(words.words))
    if closed:
        return _complain(f"{vocabulary}: words of the task language cannot be predicates: {', '.join(closed)}", 1)
    known = registered()
    again = "again " if name in known else ""
    save({**known, name: Registration(module, str(vocabulary.resolve()))})
    print(f"registered {name} {again}in {registrations_file()}: {_size(words)}")
    return 0


def _remove(name: str) -> int:
    known = registered()
    if name not in known:
        return _complain(f"'{name}' is not registered; there are: {', '.join(known) or 'none'}", 2)
    save({other: each for other, each in known.items() if other != name})
    print(f"removed {name} from {registrations_file()}")
    return 0


def _list() -> int:
    code = 0
    rows = [(name, "built in", module, "") for name, module in BUILTIN.items()]
    rows += [(name, "registered", each.module, f", {each.vocabulary}") for name, each in registered().items()]
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
