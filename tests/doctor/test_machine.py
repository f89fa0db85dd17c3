"""Versions against requirements and known faults; shared memory; run folders."""

import os
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from structrl.doctor import machine
from structrl.doctor.machine import GIB, PACKAGES, run_folder, shared_memory, versions
from structrl.doctor.report import Finding, lines, summary

FINE = {
    "structrl": "0.1.0", "torch": "2.13.0+cpu", "torchrl": "0.14.1", "tensordict": "0.14.3", "lightning": "2.6.6",
    "mujoco": "4.0.1", "numpy": "2.4.6", "h5py": "3.16.0", "jsonargparse": "4.53.0",
}  # fmt: skip
REQUIRES = {
    "structrl": ["torch>=2.11", "lightning<2.7,>=2.6.6", 'pytest>=8; extra == "dev"', "h5py>=3.10"],
    "torchrl": ["tensordict<0.15,>=0.14.0", "torch>=2.1", "packaging", "not a requirement!"],
    "tensordict": ["torch>=2.1", 'numpy<2; extra == "old"'],
}


def check(**changed):
    installed = {k: v for k, v in (FINE | changed).items() if v is not None}

    def version(package):
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    return [f for f in versions(version, lambda p: REQUIRES.get(p) if version(p) else None) if f.level != "ok"]


def test_versions_that_fit():
    assert check() == []


@pytest.mark.parametrize(
    ("changed", "level", "wanted"),
    [
        ({"lightning": "2.6.3"}, "error", "CVE-2026-58659"),
        ({"lightning": "2.6.3"}, "error", "needs lightning<2.7,>=2.6.6, and 2.6.3 is installed"),
        ({"mujoco": "4.0.0"}, "note", "sparse Cholesky"),
        ({"tensordict": "0.13.0"}, "error", "needs tensordict<0.15,>=0.14.0, and 0.13.0 is installed"),
        ({"torch": "2.4.0+cu124"}, "error", "needs torch>=2.11, and 2.4.0+cu124 is installed"),
        ({"h5py": None}, "error", "not installed"),
        ({"structrl": None}, "note", "runs from a checkout"),
    ],
)
def test_versions_that_do_not(changed, level, wanted):
    found = check(**changed)
    assert [f for f in found if f.level == level and wanted in f.text], found
    assert all(f.remedy for f in found if f.level == "error")


def test_every_package_is_required_by_structrl():
    text = (machine.Path(machine.__file__).parents[2] / "pyproject.toml").read_text()
    assert not [p for p in PACKAGES if f'"{p}' not in text]


@pytest.mark.parametrize(("free", "level"), [(0.06 * GIB, "warn"), (8 * GIB, "ok")])
def test_shared_memory(free, level, monkeypatch, tmp_path):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=free, total=free))
    (found,) = shared_memory(str(tmp_path))
    assert (found.level, "--shm-size" in found.remedy) == (level, level == "warn")


def test_run_folder(tmp_path, monkeypatch):
    (found,) = run_folder(tmp_path / "not" / "there" / "yet")
    assert found.level in ("ok", "warn") and "can be written" in found.text
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    (found,) = run_folder(tmp_path / "file")
    assert found.level == "error" and found.remedy
    if os.geteuid():
        tmp_path.chmod(0o500)
        (found,) = run_folder(tmp_path / "run")
        assert found.level == "error"


def test_report():
    found = [
        Finding("a", "x", "ok", "fine"),
        Finding("a", "y", "error", "broken", "mend it"),
        Finding("b", "z", "warn", "?"),
    ]
    assert list(lines(found)) == ["-- a", "ok    x: fine", "error y: broken", "      -> mend it", "-- b", "warn  z: ?"]
    assert summary(found) == "1 error, 1 warning"
    assert summary([]) == "no errors, no warnings"
