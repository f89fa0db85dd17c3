"""`structrl lsp`: start the language server, or say what it lacks."""

import argparse
import sys


def main(argv: list[str]) -> int:
    """Serve over standard input and output until the client ends it: 0; 2 without pygls."""
    parser = argparse.ArgumentParser(
        "structrl lsp",
        description="The language server of .task files, for editors: it speaks over standard input and output.",
    )
    parser.add_argument(
        "--stdio", action="store_true", help="accepted because many clients pass it; there is no other way"
    )
    parser.parse_args(argv)
    try:
        from structrl.lang.server import SERVER
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pygls", "lsprotocol"):
            raise
        print('structrl lsp: error: needs pygls 2: pip install "structrl[lsp]"', file=sys.stderr)
        return 2
    SERVER.start_io()
    return 0
