"""`make audit`: what it says for the answers that pip-audit may give."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from scripts import audit

VULNERABLE = {"name": "jinja2", "version": "2.4.1", "vulns": [{"id": "CVE-2014-1402"}]}
FINE = {"name": "torch", "version": "2.13.0", "vulns": []}


@pytest.fixture
def requirements(tmp_path):
    file = tmp_path / "constraints.txt"
    file.write_text("torch==2.13.0\n")
    return file


def answering(monkeypatch, probe, real):
    """pip-audit that answers so for the version that is known to be bad, and so for ours; None: no answer."""

    def run(command, **kwargs):
        answer = real if any(str(part).endswith("constraints.txt") for part in command) else probe
        text = "" if answer is None else json.dumps({"dependencies": answer})
        return SimpleNamespace(stdout=text, stderr="Connection refused" if answer is None else "")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("probe", "real", "code", "says"),
    [
        ([VULNERABLE], [FINE], 0, "0 packages with known"),
        ([VULNERABLE], [FINE, VULNERABLE], 1, "jinja2 2.4.1: CVE-2014-1402"),
        ([VULNERABLE], None, 1, "pip-audit failed"),
        ([dict(VULNERABLE, vulns=[])], [FINE], 0, "NOTHING WAS AUDITED: the advisory database has no advisories"),
        (None, [FINE], 0, "NOTHING WAS AUDITED: the advisory database did not answer: Connection refused"),
    ],
)
def test_answers(monkeypatch, capsys, requirements, probe, real, code, says):
    answering(monkeypatch, probe, real)
    assert audit.main(requirements) == code
    out = capsys.readouterr()
    assert says in out.out + out.err


def test_an_advisory_that_does_not_concern_us_is_left_out(monkeypatch, requirements):
    monkeypatch.setitem(audit.IGNORED, "CVE-2014-1402", "the sandbox is not used")
    answering(monkeypatch, [dict(VULNERABLE, vulns=[{"id": "CVE-2014-1402"}, {"id": "other"}])], [VULNERABLE])
    assert audit.main(requirements) == 0
