"""Fuzzing the language: every input ends in a tree or in diagnostics, within a second and 200 MB.

    python -m tests.lang.fuzz [--seconds 600] [--seed 0] [--kind tokens|bytes|bombs]
    python -m tests.lang.fuzz --atheris 600       # coverage-guided, where `atheris` is installed (Linux)

`tokens` mutates and splices valid files token by token; `bytes` flips, cuts and repeats bytes, and is how broken UTF-8
comes in; `bombs` repeats a fragment until the file is up to 1 MB or 10,000 deep. Each input goes through what
`structrl check` and `structrl fmt` do. Time is CPU time of the process, memory its peak resident size.
"""

import argparse
import io
import random
import re
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from structrl.lang import check
from structrl.lang.diagnostics import SEVERITIES, TaskError, render, to_github, to_json
from structrl.lang.format import format_source
from structrl.lang.parser import Parsed, grammar, keywords, parse
from structrl.lang.source import comments
from structrl.task import decode
from tests.lang.toy import ANCHOR, FULL, VOCABULARY

SECONDS = 1.0
MEGABYTES = 200
KINDS = ("tokens", "bytes", "bombs")
ROOT = Path(__file__).parent.parent.parent
TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*+"|#[^\n]*|-?[0-9][0-9.eE+-]*|\w+|\s+|[^\s\w]')
SIGNS = [
    "<",
    ">",
    "(",
    ")",
    ";",
    ",",
    ":",
    "=",
    "@",
    '"',
    "#",
    "\n",
    "\r\n",
    "\t",
    " ",
    "-",
    ".",
    "%",
    "\\",
    "->",
    "&&",
]
ODD = [
    "\ufeff",
    "\u202e",
    "\u00a0",
    "é",
    "“",
    "\x00",
    "\r",
    "\u2028",
    "\U0001f34e",
    "9" * 400,
    "1e999",
    "5cm",
    "-0",
    "x" * 99,
]


# -- inputs -----------------------------------------------------------------------------------------------------------
def corpus() -> list[str]:
    """Valid texts to begin with: the shipped tasks, the manual's examples and the tests' own."""
    texts = [ANCHOR, FULL, *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tasks").rglob("*.task")))]
    manual = (ROOT / "grammar" / "README.md").read_text(encoding="utf-8")
    return texts + re.findall(r"```task\n(.*?)```", manual, re.DOTALL)


class Mutator:
    """Draws inputs; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.texts = corpus()
        self.files = [TOKENS.findall(text) for text in self.texts]
        vocabulary = [*VOCABULARY.words, *VOCABULARY.scenes["lunch"], "apple", "box", "x", "f"]
        self.pool = [
            *SIGNS,
            *sorted(keywords()),
            "at least",
            *vocabulary,
            "3",
            "0",
            "0.5",
            "5cm",
            "10 steps",
            '"lunch"',
        ]

    def draw(self, kind: str) -> bytes:
        """One input."""
        return {"tokens": self._tokens, "bytes": self._bytes, "bombs": self._bomb}[kind]()

    def _tokens(self) -> bytes:
        rng = self.rng
        tokens = list(rng.choice(self.files))
        for _ in range(rng.choice([1, 1, 1, 1, 2, 3, 10])):
            i, j = sorted(rng.randrange(len(tokens) + 1) for _ in range(2))
            j = min(j, i + rng.choice([1, 3, 30]))
            action = rng.randrange(7)
            if action == 0:
                del tokens[i:j]
            elif action == 1:
                tokens[i:i] = tokens[i:j] * rng.choice([1, 2, 20])
            elif action == 2:
                tokens.insert(i, rng.choice(self.pool))
            elif action == 3:
                tokens[i:j] = [rng.choice(self.pool)]
            elif action == 4:
                other = rng.choice(self.files)
                k = rng.randrange(len(other))
                tokens[i:j] = other[k : k + rng.choice([3, 10, 60])]
            elif action == 5 and tokens:
                k = rng.randrange(len(tokens))
                tokens[k], tokens[i - 1] = tokens[i - 1], tokens[k]
            else:
                tokens[i:j] = [rng.choice(ODD)] if rng.random() < 0.1 else [f" {rng.choice(self.pool)} "] * 2
        return "".join(tokens)[:1_000_000].encode("utf-8")

    def _bytes(self) -> bytes:
        rng = self.rng
        data = bytearray(rng.choice(self.texts).encode("utf-8") if rng.random() < 0.9 else rng.randbytes(200))
        for _ in range(rng.choice([1, 1, 1, 2, 4, 32])):
            i, j = sorted(rng.randrange(len(data) + 1) for _ in range(2))
            j = min(j, i + 40)
            action = rng.randrange(6)
            if action == 0:
                del data[i:j]
            elif action == 1:
                data[i:j] = (
                    rng.randbytes(rng.choice([1, 2, 8]))
                    if rng.random() < 0.3
                    else rng.choice(b"<>();,:=@ ae1").to_bytes()
                )
            elif action == 2:
                data[i:i] = data[i:j] * rng.choice([1, 3, 50])
            elif action == 3:
                data[i:i] = rng.choice([*ODD, *SIGNS]).encode("utf-8")
            elif action == 4 and data:
                data[i - 1] ^= 1 << rng.randrange(8)
            elif data:
                data[i - 1] = rng.randrange(32, 127)
        return bytes(data)

    def _bomb(self) -> bytes:
        """A fragment again and again, numbered or not, with something before, between and behind."""
        rng = self.rng
        if rng.random() < 0.5:
            tokens = rng.choice(self.files)
            k = rng.randrange(len(tokens))
            unit = "".join(tokens[k : k + rng.choice([1, 2, 4, 8, 16, 32])])
        else:
            unit = " ".join(rng.choice([*self.pool, *ODD]) for _ in range(rng.choice([1, 1, 2, 4, 8])))
        unit += rng.choice(["", " ", "\n", ";", " then ", " and ", ", ", "@ 3 then ", '"', "#\n"])
        size = rng.choice([3_000, 20_000, 100_000, 1_000_000, 1_000_100])
        count = min(size // max(1, len(unit.encode("utf-8"))), rng.choice([100, 1_000, 10_000, 1_000_000]))
        if rng.random() < 0.3:
            name = rng.choice(["apple", "box", "x", "a", "in", "1"])
            body = "".join(unit.replace(name, f"{name}{i}") for i in range(min(count, 50_000)))
        else:
            body = unit * count
        before = rng.choice(
            ["", "", "plan ", "group < ", "a(x) then ", "success ", "define f(x) = ", 'command "', "a(", FULL]
        )
        behind = rng.choice(["", "", "a(x)", " > ", ")", '"', " then", "=", "\n" + FULL])
        return (before + body + behind).encode("utf-8")[:1_000_001]


# -- the oracle -------------------------------------------------------------------------------------------------------
def examine(data: bytes) -> str:
    """Take an input through the language, as the commands do; what came of it, for counting.

    Raises:
        AssertionError: where a stage breaks its promise.
        Exception: anything but `TaskError` from the language is a finding.
    """
    try:
        start = time.process_time()
        text = decode(io.BytesIO(data), "f.task")
        parsed = parse(text, "f.task")
        _on_time("parse", start)
    except TaskError as error:
        _on_time("parse", start)
        assert error.diagnostics and str(error)
        assert all(each.message and each.code and each.span.line > 0 < each.span.col for each in error.diagnostics)
        return error.diagnostics[0].code
    outcome, start = "checked", time.process_time()
    for vocabulary in (None, VOCABULARY):
        checked = check.check(parsed, "f.task", vocabulary)
        found = checked.diagnostics
        assert (checked.task is None) == any(each.severity == "error" for each in found)
        _render(parsed, found)
        outcome = "task" if checked.task else outcome
        start = _on_time("check", start)
    if not parsed.diagnostics:
        result = format_source(text, "f.task")
        start = _on_time("fmt", start)
        assert format_source(result, "f.task") == result, "fmt(fmt(x)) != fmt(x)"
        assert [each.text for each in comments(result)] == [each.text for each in parsed.comments], "a comment is lost"
    return outcome


def _on_time(what: str, start: float) -> float:
    seconds = time.process_time() - start
    assert seconds < SECONDS, f"{what} is slow"
    return time.process_time()


def _render(parsed: Parsed, found: list) -> None:  # type: ignore[type-arg]
    rendered = render(found, parsed.text, "f.task")
    assert sum(rendered.count(f"{each}[") for each in SEVERITIES) >= len(found)
    triples = [("f.task", parsed.text, each) for each in found]
    to_json(triples)
    to_github(triples)


class Watch:
    """Runs inputs under the bounds on time and memory and keeps what broke them."""

    def __init__(self) -> None:
        grammar()
        self.outcomes: Counter[str] = Counter()
        self.findings: dict[str, bytes] = {}
        self.slowest = (0.0, b"")
        signal.signal(signal.SIGVTALRM, self._hang)

    @staticmethod
    def _hang(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError("10 s")

    def run(self, data: bytes) -> None:
        """One input. Findings of one kind are kept once."""
        start, peak = time.process_time(), _peak()
        signal.setitimer(signal.ITIMER_VIRTUAL, 10)
        try:
            self.outcomes[examine(data)] += 1
        except Exception as error:  # whatever escapes is the finding
            frame = error.__traceback__
            while frame and frame.tb_next:
                frame = frame.tb_next
            where = f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
            self._keep(f"{type(error).__name__} at {where}: {str(error)[:100]}", data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        seconds = time.process_time() - start
        self.slowest = max(self.slowest, (seconds, data))
        if _peak() > max(MEGABYTES, peak):
            self._keep(f"memory: about {_peak() // 100 * 100:.0f} MB", data)

    def _keep(self, what: str, data: bytes) -> None:
        self.findings.setdefault(what, data)


def _peak() -> float:
    """Peak resident size of this process in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux ru_maxrss survives exec: a child would report the peak of the pytest that started it
        return int(re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)[1]) / (1 << 10)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


# -- runs -------------------------------------------------------------------------------------------------------------
def fuzz(seed: int, kinds: tuple[str, ...], seconds: float, runs: int | None = None) -> Watch:
    """Draw and run inputs of each kind in turn, for `seconds` of wall time or `runs` inputs."""
    mutator, watch = Mutator(seed), Watch()
    stop, count = time.monotonic() + seconds, 0
    while time.monotonic() < stop and (runs is None or count < runs):
        watch.run(mutator.draw(kinds[count % len(kinds)]))
        count += 1
    return watch


def _atheris(seconds: int, seed: int) -> None:
    import atheris

    atheris.instrument_all()
    watch = Watch()
    folder = Path(f"/tmp/structrl-fuzz-{time.time_ns()}")
    folder.mkdir()
    for i, text in enumerate(corpus()):
        (folder / f"{i}.task").write_text(text, encoding="utf-8")

    def one(data: bytes) -> None:
        before = len(watch.findings)
        watch.run(data)
        for what, found in list(watch.findings.items())[before:]:
            print(f"finding: {what}: {found[:300]!r}", flush=True)

    options = [f"-max_total_time={seconds}", "-max_len=4096", f"-seed={seed + 1}", "-timeout=20", "-verbosity=1"]
    words = folder / "words.dict"
    words.write_text("".join(f'"{word}"\n' for word in sorted(keywords())), encoding="utf-8")
    atheris.Setup([sys.argv[0], *options, f"-dict={words}", str(folder)], one)
    atheris.Fuzz()


def main() -> int:
    """0 nothing found, 1 something."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, help="only this kind (default: each in turn)")
    parser.add_argument("--atheris", type=int, metavar="SECONDS", help="coverage-guided")
    args = parser.parse_args()
    if args.atheris:
        _atheris(args.atheris, args.seed)
        return 0
    watch = fuzz(args.seed, (args.kind,) if args.kind else KINDS, args.seconds)
    print(f"{sum(watch.outcomes.values()):,} inputs in {args.seconds:g} s, peak {_peak():.0f} MB")
    print("outcomes:", ", ".join(f"{name} {count:,}" for name, count in watch.outcomes.most_common()))
    print(f"slowest: {watch.slowest[0]:.2f} s CPU, {len(watch.slowest[1]):,} bytes: {watch.slowest[1][:80]!r}")
    for what, data in watch.findings.items():
        name = Path(f"/tmp/structrl-fuzz-{abs(hash(data)) % 10**8}.task")
        name.write_bytes(data)
        print(f"finding: {what}: {len(data):,} bytes in {name}: {data[:200]!r}")
    return int(bool(watch.findings))


if __name__ == "__main__":
    sys.exit(main())
