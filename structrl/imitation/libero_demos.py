"""LIBERO's own demonstrations (robomimic-style HDF5) as episodes, their conditions read from the stored states.

    /data              attrs: bddl_file_name, ...
    /data/demo_i       attrs: model_file (MJCF text; it alone says where cabinets and stoves stood)
        actions        [T, 7]
        states         [T, 1 + nq + nv]   time, qpos, qvel before each action

Whether a demonstration holds what its task asks for is decided here, by LIBERO's own predicates, not taken from the
file. LIBERO stores no state after the last action, so that action is executed once more; the success of a
demonstration that ends with it may not come back.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from structrl.evaluate.episodes import Episode
from structrl.lang.spec import TaskSpec
from structrl.sims.base import AtomTest
from structrl.sims.conditions import ConditionTable
from structrl.sims.process import run_module

MODULE = "structrl.sims.libero.replay"
BATCH = 10  # demonstrations per call of LIBERO's Python: what is in memory at once


def read_libero(path: Path, task: TaskSpec, python: str, sim: dict[str, Any]) -> Iterator[Episode]:
    """The demonstrations of a file, in its order.

    Args:
        path: LIBERO's HDF5 file.
        task: the task file's task.
        python: interpreter that has LIBERO.
        sim: arguments of the simulator: what to observe.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no such file, is of another task, or its states do not fit; names file and demonstration.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is no readable HDF5 file ({error})") from None
    with file:
        data = file.get("data")
        names = sorted(int(n[5:]) for n in data or () if n.startswith("demo_") and n[5:].isdigit())
        if not names:
            raise ValueError(f"{path} is no file of demonstrations: it has no /data/demo_0")
        bddl = Path(str(data.attrs.get("bddl_file_name", ""))).name
        for first in range(0, len(names), BATCH):
            yield from _batch(path, data, names[first : first + BATCH], bddl, task, python, sim)


def _batch(
    path: Path, data: h5py.Group, names: list[int], bddl: str, task: TaskSpec, python: str, sim: dict[str, Any]
) -> Iterator[Episode]:
    request: dict[str, Any] = {}
    for i, name in enumerate(names):
        group = data[f"demo_{name}"]
        try:
            states, actions, model = group["states"][()], group["actions"][()], str(group.attrs["model_file"])
        except KeyError as error:
            raise ValueError(f"{path}: demo_{name} is not as LIBERO writes it: {error}") from None
        if len(states) != len(actions) or not len(states) or actions.shape[1:] != (7,):
            raise ValueError(f"{path}: demo_{name} has states {states.shape} and actions {actions.shape}")
        request |= {f"{i}.states": states, f"{i}.actions": actions, f"{i}.model": model}
    request["head"] = json.dumps(
        {"task": task.to_json(), "bddl": bddl, "sim": sim, "episodes": len(names), "names": names}
    )
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "request.npz"), Path(folder, "answer.npz")
        np.savez(asked, **request)
        done = run_module(python, MODULE, str(asked), str(answered))
        if done.returncode:
            why = done.stderr.strip()
            raise ValueError(f"{path}: {why.splitlines()[-1] if why else f'{python} ended with {done.returncode}'}")
        with np.load(answered) as file:
            answer = dict(file)
    tests = tuple(AtomTest(**test) for test in json.loads(str(answer["atom_tests"])))
    for i, name in enumerate(names):
        prefix = f"{i}.observation."
        yield _episode(
            task,
            name,
            np.asarray(request[f"{i}.actions"], np.float32),
            {key: answer[f"{i}.{key}"] for key in ("atoms", "values", "success")},
            {key.removeprefix(prefix): value for key, value in answer.items() if key.startswith(prefix)},
            tests,
        )


def _episode(
    task: TaskSpec,
    name: int,
    actions: np.ndarray,
    seen: dict[str, np.ndarray],
    observation: dict[str, np.ndarray],
    tests: tuple[AtomTest, ...],
) -> Episode:
    """Conditions from atoms, cut at the first success or failure, where an episode of ours would end."""
    table, only = ConditionTable([task]), np.zeros(1, np.int64)
    table.reset(only, [0])
    holds, success, length = [], [], len(actions)
    for t, atoms in enumerate(seen["atoms"]):
        verdict = table.step(only, atoms[None])
        holds.append(verdict.holds[0].copy())
        good = bool(seen["success"][t]) if task.success is None else bool(verdict.success[0])
        success.append(good and not verdict.fail[0])
        if t and (success[-1] or verdict.fail[0]):
            length = t
            break
    rows = length + 1
    return Episode(
        task=task,
        start=np.array([0, -1, 0, 0, 0, name], np.int64),  # no start of ours
        actions=actions[:length],
        holds=np.array(holds[:rows]),
        success=np.array(success[:rows]),
        failed=bool(task.fail is not None and verdict.fail[0]),
        atoms=seen["atoms"][:rows],
        atom_values=seen["values"][:rows],
        atom_tests=tests,
        obs_at=np.arange(length, dtype=np.int64),
        observation={key: value[:length] for key, value in observation.items()},
    )
