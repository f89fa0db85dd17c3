"""Checks that need neither torch nor a simulator: versions, processors, memory, shared memory, folders."""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from structrl import __version__
from structrl.doctor.report import Finding

PACKAGES = ("torch", "torchrl", "tensordict", "lightning", "mujoco", "numpy", "h5py", "jsonargparse")
# package, versions, what is wrong with them, what to do. Lightning: GHSA-w37p-236h-pfx3 (2.6.2 and 2.6.3 were malware)
# and CVE-2026-58659 (code execution while a checkpoint loads, up to 2.6.5). MuJoCo: the 4.0.1 release notes.
KNOWN: tuple[tuple[str, str, Finding], ...] = (
    (
        "lightning",
        "<2.6.6",
        Finding(
            "versions", "lightning", "error", "a loaded checkpoint can run code (CVE-2026-58659)",
            "pip install 'lightning>=2.6.6,<2.7'; after 2.6.2 or 2.6.3, which were malware, change this machine's keys",
        ),
    ),
    (
        "mujoco",
        "==4.0.0",
        Finding(
            "versions", "mujoco", "note", "4.0.0 has a bug in the sparse Cholesky factor (fixed in 4.0.1)",
            "structrl's scenes do not use it; in a scene of your own set <option jacobian=\"dense\"/>",
        ),
    ),
)  # fmt: skip
GIB = 2**30


def versions(
    version: Callable[[str], str] = metadata.version,
    requires: Callable[[str], list[str] | None] = metadata.requires,
) -> Iterator[Finding]:
    """Versions of what matters; requirements among them that are not met; versions with known faults.

    Args:
        version: of a package, raises PackageNotFoundError.
        requires: the requirements of a package, raises PackageNotFoundError.
    """
    python, system = sys.version.split()[0], f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding("versions", "structrl", "ok", f"{__version__}, python {python}, {system}")
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except metadata.PackageNotFoundError:
            yield Finding("versions", package, "error", "not installed", f"pip install {package}")
    yield Finding("versions", "packages", "ok", ", ".join(f"{name} {v}" for name, v in found.items()))
    for package in ("structrl", *PACKAGES):
        try:
            yield from _unmet(package, requires(package) or [], version)
        except metadata.PackageNotFoundError:
            if package == "structrl":
                yield Finding("versions", "structrl", "note", "runs from a checkout; its requirements are not checked")
    for package, wrong, finding in KNOWN:
        if package in found and Requirement(f"{package}{wrong}").specifier.contains(found[package], prereleases=True):
            yield finding


def _unmet(package: str, requirements: list[str], version: Callable[[str], str]) -> Iterator[Finding]:
    for line in requirements:
        try:
            wanted = Requirement(line)
        except InvalidRequirement:  # of somebody else's package
            continue
        if wanted.name not in PACKAGES or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        try:
            present = version(wanted.name)
        except metadata.PackageNotFoundError:
            continue  # said already
        if not wanted.specifier.contains(present, prereleases=True):
            text = f"needs {wanted.name}{wanted.specifier}, and {present} is installed"
            yield Finding("versions", package, "error", text, f"pip install '{wanted.name}{wanted.specifier}'")


def processors(environment: dict[str, str] | os._Environ = os.environ) -> Iterator[Finding]:
    """Cores that this process may use, and the threads that libraries will start."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{usable} of {os.cpu_count()} cores may be used"
    quota = _first(r"(\d+) (\d+)", "/sys/fs/cgroup/cpu.max")
    if quota:
        text += f", {int(quota[0]) / int(quota[1]):.3g} of them by the container's limit"
    yield Finding("machine", "processors", "ok", text)
    threads = environment.get("OMP_NUM_THREADS")
    yield Finding(
        "machine", "threads", "ok",
        f"OMP_NUM_THREADS {threads or 'not set'}; structrl fit uses 1 torch thread per rank unless --threads says more",
    )  # fmt: skip


def memory() -> Iterator[Finding]:
    """Main memory, and the shared memory through which simulators in workers hand over their observations."""
    total, free = (_first(rf"{name}:\s+(\d+) kB", "/proc/meminfo") for name in ("MemTotal", "MemAvailable"))
    if total and free:
        text = f"{int(free[0]) * 1024 / GIB:.1f} of {int(total[0]) * 1024 / GIB:.1f} GiB available"
        limit = _first(r"(\d+)", "/sys/fs/cgroup/memory.max")
        if limit:
            text += f", the container may use {int(limit[0]) / GIB:.1f} GiB"
        yield Finding("machine", "memory", "ok", text)


def shared_memory(folder: str = "/dev/shm") -> Iterator[Finding]:
    """The size of `folder`. Containers have 64 MiB by default: 160 environments with two 256 x 256 images fill it."""
    if not os.path.isdir(folder):
        yield Finding("machine", "shared memory", "note", f"there is no {folder} on this system")
        return
    usage = shutil.disk_usage(folder)
    text = f"{folder} has {usage.free / GIB:.2f} of {usage.total / GIB:.2f} GiB free"
    if usage.free < 0.25 * GIB:
        remedy = f"docker run --shm-size=8g, or mount -o remount,size=8g {folder}; or fewer environments"
        yield Finding("machine", "shared memory", "warn", f"{text}: too little for image observations", remedy)
    else:
        yield Finding("machine", "shared memory", "ok", text)


def run_folder(folder: Path) -> Iterator[Finding]:
    """Whether runs can be written to `folder` (or to where it will be made), and how much."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    remedy = "choose another with trainer.default_root_dir (and doctor --run DIR)"
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        yield Finding("machine", "run folder", "error", f"{folder}: cannot write: {error.strerror}", remedy)
        return
    free = shutil.disk_usage(there).free / GIB
    text = f"{folder} can be written, {free:.1f} GiB free; a run keeps two checkpoints, and a third while it writes"
    if free < 1:
        yield Finding("machine", "run folder", "warn", text, remedy)
    else:
        yield Finding("machine", "run folder", "ok", text)


def _first(pattern: str, path: str) -> tuple[str, ...] | None:
    """The groups of the first match in a file of the kernel's; None where there is none."""
    try:
        match = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return match.groups() if match else None
