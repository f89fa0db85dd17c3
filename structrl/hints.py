"""Did you mean ...? The question in one place, and a reader of files with a bound. The standard library only."""

import difflib
from collections.abc import Iterable
from typing import IO


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of `known` that is most like `word`, whatever the case of either; None if nothing is close."""
    names = {name.lower(): name for name in sorted(known)}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def hint(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of what exists."""
    known = sorted(known)
    close = closest(word, known)
    return f"; did you mean '{close}'?" if close else f"; one of: {', '.join(known) or '(none)'}"


def read_bounded(file: IO[bytes], limit: int) -> str:
    """The text of an open file. However long it is, no more than `limit` bytes (and one) are read.

    Raises:
        ValueError: for a longer file, and for one that is not UTF-8; without the file's name.
    """
    data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"more than {limit:,} bytes; no more are read")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
