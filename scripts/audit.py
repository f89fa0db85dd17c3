"""Looks the pinned versions up in the advisory database of PyPI: `make audit`.

pip-audit does the work. Its answer counts only if the database answered and knows anything: the versions of
KNOWN_BAD must be reported by it, too. Where it cannot be reached, or is a mirror without advisories, this says that
nothing was audited and succeeds: a check that needs the network must not stop a machine without one.

    python scripts/audit.py [REQUIREMENTS]      exit code 1: a pinned version has a known vulnerability
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

KNOWN_BAD = "jinja2==2.4.1"  # CVE-2014-1402 and many since
IGNORED: dict[str, str] = {}  # advisory -> why it does not concern us


def audit(requirements: Path) -> tuple[dict[str, list[str]] | None, str]:
    """Package -> its advisories, of exact versions; None if the database did not answer. And what pip-audit said."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps", "--disable-pip",
            "--format", "json", "--progress-spinner", "off",
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        return None, done.stderr.strip()
    return {
        f"{package['name']} {package['version']}": [v["id"] for v in package["vulns"] if v["id"] not in IGNORED]
        for package in answer["dependencies"]
        if package.get("vulns")
    }, done.stderr.strip()


def main(requirements: Path) -> int:
    """Exit code."""
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "requirements.txt"
        probe.write_text(f"{KNOWN_BAD}\n")
        known, said = audit(probe)
    if not known:
        why = "has no advisories" if known is not None else f"did not answer: {said.splitlines()[-1] if said else ''}"
        print(f"NOTHING WAS AUDITED: the advisory database {why}", file=sys.stderr)
        return 0
    found, said = audit(requirements)
    if found is None:
        print(f"pip-audit failed on {requirements}:\n{said}", file=sys.stderr)
        return 1
    bad = {package: ids for package, ids in found.items() if ids}
    for package, ids in bad.items():
        print(f"{package}: {', '.join(ids)}", file=sys.stderr)
    print(f"{requirements}: {len(bad)} packages with known vulnerabilities")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("constraints.txt")))
