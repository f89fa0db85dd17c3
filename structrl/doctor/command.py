"""`structrl doctor`: the checks in order, printed as they come, and an exit code."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from structrl import resources
from structrl.doctor.machine import GIB, memory, processors, run_folder, shared_memory, versions
from structrl.doctor.probes import ProbeError, probe
from structrl.doctor.report import Finding, lines, summary
from structrl.sims.installed import requirements, status
from structrl.sims.registrations import registered
from structrl.sims.registry import BUILTIN
from structrl.sims.vocabulary import load_vocabulary
from structrl.task import load_task

TIMEOUT = 300.0  # seconds for a probe: on a cold file system, importing torch alone may take a minute
PICTURES_WANTED = "pictures and camera observations need it; object states do not"


def main(argv: list[str]) -> int:
    """Run `structrl doctor`: 0 nothing is broken, 1 something is, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        "structrl doctor",
        description="What this machine offers, and what is wrong with it: versions, GPU, OpenGL, memory, simulators. "
        "The report is made to be pasted into an issue; it holds no user name and no environment variable but those "
        "that it names.",
    )
    parser.add_argument("--run", type=Path, default=Path("runs"), metavar="DIR", help="where runs will be written")
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="FILE",
        help="try the simulator of this task file too; repeatable",
    )
    args = parser.parse_args(argv)
    findings = []

    def collect() -> Iterator[Finding]:
        for each in _checks(args.run, args.task):
            findings.append(each)
            yield each

    for line in lines(collect()):
        print(line, flush=True)
    print(f"-- {summary(findings)}")
    return int(any(each.level == "error" for each in findings))


def _checks(folder: Path, tasks: list[str]) -> Iterator[Finding]:
    yield from versions()
    yield from processors()
    yield from memory()
    yield from shared_memory()
    yield from run_folder(folder)
    yield from accelerator()
    yield from opengl()
    yield from simulators(tasks)


def accelerator() -> Iterator[Finding]:
    """Torch, and the GPUs that it sees."""
    try:
        found = probe("torch", timeout=TIMEOUT)
    except ProbeError as error:
        yield Finding("torch", "import", "error", str(error), "reinstall torch, torchrl and lightning together")
        return
    build = f"CUDA {found['cuda_build']}" if found["cuda_build"] else "CPU only"
    backends = [name for name in ("gloo", "nccl") if found[name]]
    text = f"built for {build}, {found['threads']} threads by default, several ranks over {', '.join(backends) or '?'}"
    yield Finding("torch", "torch", "ok", text)
    for i, gpu in enumerate(found["gpus"]):
        text = f"{gpu['name']} (sm {gpu['sm']}), {gpu['free'] / GIB:.1f} of {gpu['total'] / GIB:.1f} GiB free"
        remedy = "" if gpu["ok"] else "a matrix product on it is wrong: this torch does not fit its driver"
        yield Finding("torch", f"GPU {i}", "ok" if gpu["ok"] else "error", text, remedy)
    if not found["gpus"]:
        devices = Path("/dev/nvidiactl").exists()
        remedy = "the machine has an NVIDIA driver: install a CUDA build of torch that fits it" if devices else ""
        yield Finding("torch", "GPU", "warn" if devices else "note", "torch sees none", remedy)


def opengl() -> Iterator[Finding]:
    """The backend that MuJoCo will draw with, tried; and the number of EGL devices."""
    chosen = os.environ.get("MUJOCO_GL", "")
    if not chosen and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        remedy = "export MUJOCO_GL=egl (or osmesa, without a GPU driver)"
        yield Finding("OpenGL", "MUJOCO_GL", "warn", f"not set, and there is no display: {PICTURES_WANTED}", remedy)
        chosen = "egl"  # what we advise is what we try
    if chosen in ("", "egl") and sys.platform == "linux":
        try:
            yield Finding("OpenGL", "EGL devices", "ok", str(probe("egl", timeout=TIMEOUT)["devices"]))
        except ProbeError as error:
            yield Finding("OpenGL", "EGL devices", "warn", str(error), "apt-get install libegl1 libgl1 libgl1-mesa-dri")
    try:
        found = probe("render", timeout=TIMEOUT, environment={"MUJOCO_GL": chosen} if chosen else {})
    except ProbeError as error:
        remedy = f"{PICTURES_WANTED}; try MUJOCO_GL=egl, then osmesa"
        yield Finding("OpenGL", "a picture", "warn", f"MUJOCO_GL={chosen or '(default)'}: {error}", remedy)
        return
    text = f"MUJOCO_GL={chosen or '(default)'}, {found['driver']}, {found['ms']:.1f} ms for 256 x 256"
    if not found["drawn"]:
        remedy = "try another MUJOCO_GL: egl, osmesa, glfw"
        yield Finding("OpenGL", "a picture", "error", f"{text}: the picture is wrong", remedy)
    elif "llvmpipe" in found["driver"] or "softpipe" in found["driver"]:
        yield Finding("OpenGL", "a picture", "note", f"{text}; drawn by processors, not by a GPU")
    else:
        yield Finding("OpenGL", "a picture", "ok", text)


def simulators(tasks: list[str]) -> Iterator[Finding]:
    """Every known simulator's vocabulary, and a trial of those for which there is a task: given, or shipped."""
    trials: dict[str, str] = {}
    for task in [*tasks, *_shipped()]:
        try:
            name = load_task(task).sim
        except (ValueError, FileNotFoundError) as error:
            yield Finding("simulators", task, "error", str(error).splitlines()[0], f"structrl check {task}")
            continue
        if name is not None:
            trials.setdefault(name, task)
    try:
        known = {**dict.fromkeys(BUILTIN, "built in"), **dict.fromkeys(registered(), "registered")}
    except ValueError as error:
        yield Finding("simulators", "registered ones", "error", str(error), "repair or delete that file")
        known = dict.fromkeys(BUILTIN, "built in")
    for name, kind in known.items():
        try:
            load_vocabulary(name)
        except ValueError as error:
            yield Finding("simulators", name, "error", f"{kind}; {error}", f"structrl vocabulary {name}")
            continue
        state = "installed" if requirements(name) is None else status(name)
        if state != "installed":
            text = f"{kind}; its own Python is {state}"
            remedy = f"structrl sims install {name}, to use it"
            yield Finding("simulators", name, "warn" if state == "outdated" else "note", text, remedy)
        elif name in trials:
            yield _trial(name, kind, trials[name])
        else:
            yield Finding("simulators", name, "note", f"{kind}; not tried: give a task of it with --task FILE")


def _shipped() -> list[str]:
    """One shipped task per folder of tasks: every benchmark's folder has tasks of one simulator."""
    folders = sorted((each for each in resources.folder("tasks").iterdir() if each.is_dir()), key=lambda f: f.name)
    firsts = [(f.name, min((t.name for t in f.iterdir() if t.name.endswith(".task")), default=None)) for f in folders]
    return [f"{folder}/{first.removesuffix('.task')}" for folder, first in firsts if first]


def _trial(name: str, kind: str, task: str) -> Finding:
    try:
        found = probe("simulator", task, timeout=TIMEOUT)
    except ProbeError as error:
        advice = f"structrl check {task}; structrl sims list"
        return Finding("simulators", name, "error", f"{kind}, {task}: {error}", advice)
    seen = ", ".join(f"{k} {v}" for k, v in found["observation"].items())
    text = (
        f"{kind}, {task}: started in {found['start_s']:.1f} s; per environment, {found['step_ms']:.2f} ms a step and "
        f"{found['observe_ms']:.2f} ms an observation ({seen})"
    )
    if not found["finite"]:
        return Finding("simulators", name, "error", f"{text}: not finite", "report it to the simulator's authors")
    return Finding("simulators", name, "ok", text)
