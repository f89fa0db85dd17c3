"""`structrl check`, `structrl fmt` and `structrl vocabulary`. No torch, no simulator."""

import argparse
import difflib
import sys
from pathlib import Path

from structrl.hints import hint
from structrl.lang.check import check as check_parsed
from structrl.lang.diagnostics import FORMATS, SEVERITIES, Diagnostic, TaskError, render, to_github, to_json
from structrl.lang.format import format_source
from structrl.lang.parser import parse
from structrl.sims.vocabulary import Vocabulary, load_vocabulary
from structrl.task import decode, read_task

MANY = 12  # scenes; more are listed without what is in them


def check(argv: list[str]) -> int:
    """Check task files: 0 none has an error, 1 some has, 2 a file cannot be read."""
    parser = argparse.ArgumentParser("structrl check", description="Check .task files; report every error, with help.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="task files, shipped tasks, folders, or - for stdin")
    parser.add_argument("--format", choices=FORMATS, default="text", help="how findings are printed (default: text)")
    args = parser.parse_args(argv)
    found: list[tuple[str, str, Diagnostic]] = []
    unread = 0
    names = _files(args.files)
    for name in names:
        try:
            path, text = read(name)
        except OSError as error:
            unread += 1
            _complain("check", name, error)
            continue
        except TaskError as error:
            found += [(error.path, error.source, item) for item in error.diagnostics]
            continue
        found += [(path, text.removeprefix("\ufeff"), item) for item in _diagnose(text, path)]
    if args.format == "json":
        print(to_json(found))
    elif args.format == "github":
        print(to_github(found), end="\n" if found else "")
    else:
        for path, text, item in found:
            print(render([item], text, path), end="\n\n")
        print(_summary(found, len(names) - unread))
    if unread:
        return 2
    return int(any(item.severity == "error" for _, _, item in found))


def _diagnose(text: str, path: str) -> list[Diagnostic]:
    try:
        return check_parsed(parse(text, path), path).diagnostics
    except TaskError as error:
        return error.diagnostics


def _summary(found: list[tuple[str, str, Diagnostic]], files: int) -> str:
    counts = []
    for severity in SEVERITIES:
        count = sum(item.severity == severity for _, _, item in found)
        if count or severity == "error":
            counts.append(f"{count or 'no'} {severity}{'' if count == 1 else 's'}")
    return f"{files} file{'' if files == 1 else 's'}: {', '.join(counts)}"


def fmt(argv: list[str]) -> int:
    """Format task files: 0 done or nothing to do, 1 --check or --diff found something, or a file does not parse."""
    parser = argparse.ArgumentParser("structrl fmt", description="Put .task files into canonical layout.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="task files, folders, or - for stdin to stdout")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file would change")
    parser.add_argument("--diff", action="store_true", help="change nothing; print what would change, then exit 1")
    args = parser.parse_args(argv)
    code = 0
    for name in _files(args.files):
        try:
            path, text = read(name, shipped=False)
            new = format_source(text, path)
        except OSError as error:
            _complain("fmt", name, error)
            code = 2
            continue
        except TaskError as error:
            print(error, file=sys.stderr)
            code = max(code, 1)
            continue
        changed = new != text
        if args.check or args.diff:
            code = max(code, int(changed))
        if args.diff and changed:
            old = text.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(old, new.splitlines(keepends=True), path, f"{path} (formatted)"))
        elif args.check and changed:
            print(f"would format {path}")
        elif not (args.check or args.diff) and name == "-":
            sys.stdout.write(new)
        elif not (args.check or args.diff) and changed:
            Path(name).write_text(new, encoding="utf-8", newline="\n")
            print(f"formatted {path}")
    return code


def vocabulary(argv: list[str]) -> int:
    """Print what a simulator's tasks may say: 0, or 2 for an unknown simulator."""
    parser = argparse.ArgumentParser("structrl vocabulary", description="Verbs, predicates and scenes of a simulator.")
    parser.add_argument("sim", metavar="SIM", help="its name; `structrl sims list` shows all")
    parser.add_argument("scene", nargs="?", metavar="SCENE", help="show the entities of this one, such as libero_10/2")
    args = parser.parse_args(argv)
    try:
        words = load_vocabulary(args.sim)
    except ValueError as error:
        print(f"structrl vocabulary: error: {error}", file=sys.stderr)
        return 2
    if args.scene is None:
        print(_describe(words))
    elif args.scene in words.scenes:
        print("\n".join(_scene(words, args.scene)))
    else:
        message = f"{words.sim} has no scene '{args.scene}'{hint(args.scene, list(words.scenes)[:MANY])}"
        print(f"structrl vocabulary: error: {message}", file=sys.stderr)
        return 2
    return 0


def _scene(words: Vocabulary, scene: str) -> list[str]:
    lines = [f'scene "{scene}"' + (f": {words.title(scene)}" if words.title(scene) else "")]
    lines += [f"  its own check of success: {words.success(scene)}"] if words.success(scene) else []
    return lines + [f"  {name}: {', '.join(kinds)}" for name, kinds in words.scenes[scene].items()]


def _describe(words: Vocabulary) -> str:
    success = "has a success check of its own" if words.has_success else "needs `success` in the task file"
    lines = [f"{words.sim}: {words.control_hz:g} environment steps per second; {success}"]
    lines += ["", "verbs (words of instruction; each stands for a predicate)"]
    for verb in words.verbs.values():
        lines.append(f"  {verb.name}({', '.join(verb.args)})  =  {verb.predicate}: {verb.meaning}")
    lines += ["", "predicates"]
    for each in words.predicates.values():
        lines.append(f"  {each.name}({', '.join(each.args)}): {each.meaning}{' [pulse]' if each.pulse else ''}")
        lines += [f"      {line}" for line in each.tests()]
    if len(words.scenes) > MANY:
        lines += ["", f"{len(words.scenes)} scenes (`structrl vocabulary {words.sim} SCENE` shows what is in one)"]
        lines += [f"  {scene}  {words.title(scene)}".rstrip() for scene in words.scenes]
    else:
        for scene in words.scenes:
            lines += ["", *_scene(words, scene)]
    return "\n".join(lines)


def _files(names: list[str]) -> list[str]:
    """Folders are replaced by the task files below them."""
    files = []
    for name in names:
        folder = Path(name)
        files += sorted(str(file) for file in folder.rglob("*.task")) if folder.is_dir() else [name]
    return files


def read(name: str, shipped: bool = True) -> tuple[str, str]:
    """Path (for messages) and text of a file, a shipped task, or `-`: standard input.

    Raises:
        OSError: if it cannot be read.
        TaskError: if it is not UTF-8.
    """
    if name == "-":
        return "<stdin>", decode(sys.stdin.buffer, "<stdin>")
    if not shipped and not Path(name).exists():  # what structrl ships is not for it to rewrite
        raise FileNotFoundError("no such file")
    return read_task(name)


def _complain(command: str, name: str, error: OSError) -> None:
    reason = error.strerror or str(error)
    print(f"structrl {command}: error: {name}: {reason}", file=sys.stderr)
