"""`structrl sims install`: a Python of its own for a simulator whose packages exclude structrl's (torch-free).

It is a virtual environment made from the pinned, hashed requirements beside the simulator.
"""

import json
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

from structrl.hints import hint
from structrl.sims.installed import STAMP, environment, fingerprint, installable, requirements

PYTHONS = ((3, 10), (3, 13))  # MuJoCo 3.3.2 has wheels for these
LIBRARIES = {"EGL": "libegl1", "GL": "libgl1"}  # shared library -> Debian's package
_ABOUT = "import ctypes.util, json, sys; print(json.dumps([sys.version_info[:2], %s]))"
_MISSING = f"[n for n in {sorted(LIBRARIES)!r} if not ctypes.util.find_library(n)]"


def install(name: str, python: str | None = None) -> Path:
    """Make the Python of simulator `name`; an earlier one is replaced.

    Args:
        name: one of structrl's simulators that need it.
        python: the interpreter to base it on, 3.10 to 3.13; default: the one that runs structrl.

    Returns:
        The folder of the virtual environment.

    Raises:
        ValueError: there is nothing to install for this name, or the interpreter is of another version.
        OSError: the interpreter does not start, or pip fails; nothing half-made stays behind.
    """
    source = requirements(name)
    if source is None:
        raise ValueError(f"simulator '{name}' has no environment to install{hint(name, installable())}")
    python = python or sys.executable
    version, missing = _about(python)
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        low, high = (".".join(map(str, each)) for each in PYTHONS)
        found = ".".join(map(str, version))
        raise ValueError(f"{python} is Python {found}; simulator '{name}' needs {low} to {high}: --python PATH")
    folder = environment(name)
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run([python, "-m", "venv", str(folder)])
        pip = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--require-hashes",
        ]
        with as_file(files("structrl.sims") / "build_requirements.txt") as build, as_file(source) as wanted:
            _run([*pip, "--quiet", "-r", str(build)])
            _run([*pip, "--no-build-isolation", "-r", str(wanted)])
        stamp = {"requirements": fingerprint(source), "python": ".".join(map(str, version))}
        (folder / STAMP).write_text(json.dumps(stamp) + "\n")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for library in missing:
        print(
            f"structrl sims: warning: the system has no lib{library}, which simulators render with; on Debian and "
            f"Ubuntu: apt-get install {LIBRARIES[library]} libgl1-mesa-dri",
            file=sys.stderr,
        )
    return folder


def _about(python: str) -> tuple[tuple[int, int], list[str]]:
    """Version of an interpreter, and which of the `LIBRARIES` it does not find."""
    try:
        done = subprocess.run([python, "-c", _ABOUT % _MISSING], capture_output=True, text=True, check=True)
        (major, minor), missing = json.loads(done.stdout)
    except OSError as error:
        raise OSError(error.errno, error.strerror, python) from None
    except (subprocess.CalledProcessError, ValueError):
        raise ValueError(f"{python} is no Python interpreter") from None
    return (major, minor), missing


def _run(command: list[str]) -> None:
    code = subprocess.run(command).returncode
    if code:
        raise ChildProcessError(code, f"exit code {code}", " ".join(command))
