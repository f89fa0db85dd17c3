"""The benchmarks that no other test runs still run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_update_in_its_smallest_form():
    command = [sys.executable, "-m", "benchmarks.update", "--chunks", "64", "--micro", "16", "32", "--repeats", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "micro-batch    32" in done.stdout
