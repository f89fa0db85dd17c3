"""The `structrl` command: one dispatcher. A command's module is imported only when it is called."""

import os
import sys
from importlib import import_module

# command -> (module, function taking argv and returning the exit code, one line of help)
COMMANDS = {
    "check": ("structrl.lang.commands", "check", "check .task files: every error at once, with help"),
    "fmt": ("structrl.lang.commands", "fmt", "format .task files (--check, --diff)"),
    "vocabulary": ("structrl.lang.commands", "vocabulary", "verbs and predicates of a simulator, with thresholds"),
    "explain": (
        "structrl.lang.explain",
        "explain",
        "a task in words; --episode FILE: which credits it earned, and why",
    ),
    "import": ("structrl.lang.convert", "main", "make a task file from a BDDL problem or a stage table"),
    "sims": ("structrl.sims.command", "main", "list simulators; register one of your own"),
    "lsp": ("structrl.lang.lsp", "main", "the language server, for editors (extra `lsp`)"),
    "init": ("structrl.init", "main", "start a project: copy a config and its tasks for editing"),
    "demos": ("structrl.imitation.demos", "main", "record demonstrations with the scripted expert"),
    "calibrate": (
        "structrl.imitation.calibrate",
        "main",
        "measure subtask durations and write them into the .task file",
    ),
    "fit": ("structrl.rl.cli", "fit", "train: --config X.yaml; --resume continues a run"),
    "doctor": ("structrl.doctor.command", "main", "what this machine offers, and what is wrong with it"),
    "validate": ("structrl.rl.cli", "validate", "run a config's validation episodes"),
    "evaluate": ("structrl.evaluate.command", "main", "success per task and subtask, with Wilson intervals"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; exit code 0 success, 1 findings or failure, 2 wrong usage."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: structrl COMMAND ...\n")
        for name, (_, _, text) in COMMANDS.items():
            print(f"  {name:<11} {text}")
        print("\n`structrl COMMAND --help` says more.")
        return 0 if argv else 2
    if argv[0] == "--version":
        from structrl import __version__

        print(f"structrl {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        from structrl.hints import hint

        print(f"structrl: error: unknown command '{argv[0]}'{hint(argv[0], COMMANDS)}", file=sys.stderr)
        return 2
    module, function, _ = COMMANDS[argv[0]]
    try:
        code = getattr(import_module(module), function)(argv[1:])
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough: `structrl explain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it exits
        return 1


if __name__ == "__main__":
    sys.exit(main())
