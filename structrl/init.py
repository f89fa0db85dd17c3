"""`structrl init DIR`: start a project by copying configs and their task files for editing."""

import argparse
import re
import sys
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from structrl.resources import folder


def configs() -> dict[str, Traversable]:
    """Shipped configs by name: `quickstart`, `tabletop/sft`, ..."""
    found: dict[str, Traversable] = {}

    def visit(place: Traversable, prefix: str) -> None:
        for item in sorted(place.iterdir(), key=lambda item: item.name):
            if item.is_dir():
                visit(item, f"{prefix}{item.name}/")
            elif item.name.endswith(".yaml"):
                found[prefix + item.name.removesuffix(".yaml")] = item

    visit(folder("configs"), "")
    return found


def task_entries(data: Any) -> list[str]:
    """Every entry of a `tasks:` list anywhere in a config, in order, without repetitions."""
    found: list[str] = []
    if isinstance(data, dict):
        for key, value in data.items():
            found += [str(entry) for entry in value] if key == "tasks" and isinstance(value, list) else []
            found += task_entries(value)
    elif isinstance(data, list):
        for value in data:
            found += task_entries(value)
    return list(dict.fromkeys(found))


def shipped_task(entry: str) -> tuple[Traversable, str]:
    """The shipped file that a config's entry means (`tabletop/pack_lunch`, or its path), and its path in a project.

    Raises:
        FileNotFoundError: the entry is no shipped task.
    """
    relative = entry.removeprefix("tasks/").removesuffix(".task") + ".task"
    file = folder("tasks")
    for part in relative.split("/"):
        file = file / part
    if not file.is_file():
        raise FileNotFoundError(f"the config's task '{entry}' is not a task that comes with structrl")
    return file, f"tasks/{relative}"


def project(name: str) -> dict[str, str]:
    """The files of a new project, path inside it -> text: the config `name` and its tasks.

    Task entries of the copied config become paths of the copies, relative to the project's folder; its comments stay.

    Raises:
        KeyError: there is no such config; the message lists those there are.
        FileNotFoundError: it names a task that does not come with structrl.
    """
    known = configs()
    if name not in known:
        raise KeyError(f"no config '{name}'; there are: {', '.join(known)}")
    text = known[name].read_text()
    entries = task_entries(yaml.safe_load(text))
    files = {}
    for entry in entries:
        source, path = shipped_task(entry)
        files[path] = source.read_text()
        # Whole scalars only, so that one task's name inside another's stays untouched.
        text = re.sub(rf"(?<![\w./-]){re.escape(entry)}(?![\w./-])", path, text)
    assert task_entries(yaml.safe_load(text)) == list(files), "task paths were not rewritten exactly"
    return {f"{name.split('/')[-1]}.yaml": text, **files}


def next_steps(files: dict[str, str]) -> list[str]:
    """The commands that run a project's configs, in their order."""
    commands = [f"structrl check {path}" for path in files if path.endswith(".task")]
    for path, text in files.items():
        if path.endswith(".yaml"):
            config = yaml.safe_load(text)
            demos = config["data"].get("init_args", {}).get("demos", [])
            for task, file in zip(task_entries(config), demos, strict=False):
                commands.append(f"structrl demos {task} --episodes 384 --out {file}")
            commands.append(f"structrl fit --config {path}")
    return commands


def main(argv: list[str]) -> int:
    """The command; exit code 1 where something would be overwritten, 2 for an unknown config."""
    parser = argparse.ArgumentParser(prog="structrl init", description=__doc__)
    parser.add_argument("dir", type=Path, metavar="DIR", help="the project's folder, created if needed")
    parser.add_argument(
        "--config",
        nargs="+",
        default=["tabletop/sft", "quickstart"],
        metavar="NAME",
        help="configs to start from (default: those of `make quickstart`, the warm start and the RL)",
    )
    args = parser.parse_args(argv)
    files: dict[str, str] = {}
    try:
        for name in args.config:
            files |= project(name)
    except (KeyError, FileNotFoundError) as error:
        print(f"structrl init: error: {error.args[0]}", file=sys.stderr)
        return 2
    if args.dir.exists() and not args.dir.is_dir():
        print(f"structrl init: error: {args.dir} is a file; choose another folder", file=sys.stderr)
        return 1
    existing = [path for path in files if (args.dir / path).exists()]
    if existing:
        print(
            f"structrl init: error: {args.dir} already has {', '.join(existing)}; nothing was written. "
            "Choose another folder, or move these away.",
            file=sys.stderr,
        )
        return 1
    for path, text in files.items():
        (args.dir / path).parent.mkdir(parents=True, exist_ok=True)
        (args.dir / path).write_text(text)
        print(f"  wrote {args.dir / path}")
    print("\n  ".join(["\nNext:", f"cd {args.dir}", *next_steps(files)]))
    return 0
