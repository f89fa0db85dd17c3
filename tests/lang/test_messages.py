"""What the user reads for wrong inputs. `UPDATE_GOLDEN=1 pytest tests/lang/test_messages.py` rewrites the texts."""

import os
from pathlib import Path

import pytest

from structrl.lang.check import check
from structrl.lang.diagnostics import CODES, TaskError, render
from structrl.lang.parser import parse
from tests.lang.toy import VOCABULARY

FOLDER = Path(__file__).parent.parent / "golden" / "errors"
CASES = sorted(FOLDER.glob("*.task"))


def findings(text: str, path: str) -> str:
    try:
        parsed = parse(text, path)
    except TaskError as error:
        return str(error)
    vocabulary = VOCABULARY if "sim " in text and "libero" not in text else None
    return render(check(parsed, path, vocabulary).diagnostics, parsed.text, path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_golden(case: Path):
    found = findings(case.read_text(encoding="utf-8"), case.name) + "\n"
    golden = case.with_suffix(".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8")


def test_codes_in_use_are_listed_and_in_the_manual():
    used = {code for case in CASES for code in CODES if f"[{code}]" in case.with_suffix(".txt").read_text()}
    assert used >= set(CODES) - {"T003", "T014", "T045"}, sorted(set(CODES) - used)
