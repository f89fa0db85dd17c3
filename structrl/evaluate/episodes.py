"""Episodes on disk: one HDF5 layout for demonstrations, evaluation and explanation (torch-free).

The layout follows robomimic (`/data/demo_i` with `actions`, `obs/*` and `num_samples`), plus what a reward can be
recomputed and explained from. T environment steps, N subtasks, A atoms, D action dims, O observations (one per chunk):

    /data                attrs: format, complete, total (steps), meta (JSON: what wrote it, versions, seed, ...)
    /data/demo_i         attrs: task, task_spec (JSON), task_text, atom_tests (JSON), num_samples, success, failed
        actions          f32  [T, D]       environment units
        holds            bool [T+1, N]     row 0 is at reset, after settling
        success          bool [T+1]
        atoms            bool [T+1, A]
        atom_values      f64  [T+1, A]     NaN where the simulator has no measure
        start            i64  [6]          (task, init, seed, stream, iteration, episode)
        obs_at           i64  [O]          environment step of each observation, ascending, first 0
        obs/<name>            [O, ...]     what the policy saw; `images.<cam>` of a simulator lies in `obs/images/<cam>`
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from structrl import __version__
from structrl.lang.spec import TaskSpec
from structrl.sims.base import AtomTest

FORMAT = "structrl-episodes-1"


class EpisodeFileError(ValueError):
    """An episode file that cannot be read, or that holds something else than was asked for."""


@dataclass
class Episode:
    """One finished episode; shapes in the module's docstring.

    Attributes:
        task: the task as it was run (durations as they were then).
        failed: ended by the task's `fail` condition or by unstable physics.
        atom_tests: how each atom was decided, in the order of `task.atoms`.
        obs_at: environment steps at which `observation` was taken.
        observation: by the simulator's names, `state`, `tokens`, `images.wrist`.
    """

    task: TaskSpec
    start: NDArray[np.int64]
    actions: NDArray[np.float32]
    holds: NDArray[np.bool_]
    success: NDArray[np.bool_]
    failed: bool
    atoms: NDArray[np.bool_]
    atom_values: NDArray[np.float64]
    atom_tests: tuple[AtomTest, ...]
    obs_at: NDArray[np.int64]
    observation: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """T, environment steps."""
        return len(self.actions)

    @property
    def succeeded(self) -> bool:
        """Whether the task's success held after the last step."""
        return bool(self.success[-1])

    def check(self) -> None:
        """Shapes and types agree with each other and with the task.

        Raises:
            ValueError: naming the first array that does not fit.
        """
        rows, atoms = self.length + 1, len(self.task.atoms)
        wanted = {
            "holds": (self.holds, (rows, len(self.task.subtasks)), np.bool_),
            "success": (self.success, (rows,), np.bool_),
            "atoms": (self.atoms, (rows, atoms), np.bool_),
            "atom_values": (self.atom_values, (rows, atoms), np.float64),
            "start": (self.start, (6,), np.int64),
            "actions": (self.actions, (self.length, *self.actions.shape[1:2]), np.float32),
        }
        for name, (array, shape, dtype) in wanted.items():
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"episode of '{self.task.name}': {name} is {array.dtype} {array.shape}, "
                    f"expected {np.dtype(dtype)} {shape}"
                )
        if len(self.atom_tests) != atoms:
            raise ValueError(f"episode of '{self.task.name}': {len(self.atom_tests)} atom tests for {atoms} atoms")
        at = self.obs_at
        if at.ndim != 1 or (np.diff(at) <= 0).any() or (len(at) and (at[0] != 0 or at[-1] > self.length)):
            raise ValueError(f"episode of '{self.task.name}': obs_at must ascend from 0 to at most {self.length}")
        for name, array in self.observation.items():
            if len(array) != len(at):
                raise ValueError(f"episode of '{self.task.name}': obs/{name} has {len(array)} rows for {len(at)} steps")


def versions() -> dict[str, str]:
    """Versions of what decides an episode's numbers, without importing it."""
    found = {"structrl": __version__}
    for package in ("mujoco", "numpy", "torch", "torchrl", "tensordict"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


class EpisodeWriter:
    """Appends episodes to a new file.

    It grows as `<path>.part` and takes its name when the `with` block is left normally, so that an interrupted command
    leaves no file that a later one would take for finished.

    Args:
        path: the file to create.
        meta: JSON-able facts for readers: the command, seed, chunk, reward options, counts. May be changed through
            `self.meta` until the file is closed. Versions are added.
        overwrite: replace an existing file.

    Raises:
        FileExistsError: the file exists and `overwrite` is false.
        IsADirectoryError: the path is a folder.
    """

    def __init__(self, path: str | Path, meta: dict[str, Any] | None = None, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder; give the name of a file in it")
        if self.path.exists() and not overwrite:
            raise FileExistsError(f"{self.path} exists; choose another name or pass --overwrite")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.meta = {"versions": versions(), **(meta or {})}
        self._part = self.path.with_name(self.path.name + ".part")
        # The 1.8 file format lets an attribute (a long task text) exceed 64 kB.
        self._file = h5py.File(self._part, "w", libver=("v108", "v108"))
        self._data = self._file.create_group("data")
        self._data.attrs.update(format=FORMAT, complete=False, total=0)
        self.count = 0

    def append(self, episode: Episode) -> None:
        """Write one episode as `/data/demo_<count>`.

        Raises:
            ValueError: the episode's shapes do not fit its task.
        """
        episode.check()
        group = self._data.create_group(f"demo_{self.count}")
        group.attrs.update(
            task=episode.task.name,
            task_spec=episode.task.to_json(),
            task_text=episode.task.source,
            atom_tests=json.dumps([dataclasses.asdict(test) for test in episode.atom_tests]),
            num_samples=episode.length,
            success=episode.succeeded,
            failed=bool(episode.failed),
        )
        for name in ("actions", "holds", "success", "atoms", "atom_values", "start", "obs_at"):
            group.create_dataset(name, data=getattr(episode, name))
        for name, array in episode.observation.items():
            images = array.dtype == np.uint8  # everything else is too small to be worth compressing
            group.create_dataset(
                f"obs/{name.replace('.', '/')}", data=array, compression="lzf" if images and array.size else None
            )
        self.count += 1
        self._data.attrs["total"] = int(self._data.attrs["total"]) + episode.length

    def close(self, complete: bool = True) -> None:
        """Close the file; `complete=False` leaves the unfinished `.part`."""
        if self._file:
            self._data.attrs["meta"] = json.dumps(self.meta)
            self._data.attrs["complete"] = complete
            self._file.close()
            if complete:
                self._part.replace(self.path)

    def __enter__(self) -> "EpisodeWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(complete=kind is None)


class EpisodeFile:
    """Reads what `EpisodeWriter` wrote: `len(file)`, `file[i]`, iteration, `file.meta`.

    Raises:
        FileNotFoundError: there is no such file.
        EpisodeFileError: not HDF5, cut off, unfinished, or of another format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no episode file {self.path}")
        try:
            self._file = h5py.File(self.path, "r")
        except OSError as error:
            raise EpisodeFileError(
                f"{self.path} is no readable HDF5 file: it is still being written, was cut off, or is something else "
                f"({error})"
            ) from None
        data = self._file.get("data")
        found = None if data is None else data.attrs.get("format")
        if found != FORMAT:
            self._file.close()
            raise EpisodeFileError(f"{self.path} is not an episode file of format {FORMAT} (found: {found})")
        if not data.attrs["complete"]:
            self._file.close()
            raise EpisodeFileError(f"{self.path} is unfinished: the command that wrote it was stopped; run it again")
        self._data = data
        self.meta: dict[str, Any] = json.loads(data.attrs["meta"])

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Episode:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path} holds {len(self)} episodes, 0 to {len(self) - 1}; asked for {index}")
        group = self._data[f"demo_{index}"]
        observation: dict[str, np.ndarray] = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                observation[name.replace("/", ".")] = item[()]

        if "obs" in group:
            group["obs"].visititems(visit)
        arrays = {n: group[n][()] for n in ("actions", "holds", "success", "atoms", "atom_values", "start", "obs_at")}
        return Episode(
            task=TaskSpec.from_json(group.attrs["task_spec"]),
            failed=bool(group.attrs["failed"]),
            atom_tests=tuple(AtomTest(**test) for test in json.loads(group.attrs["atom_tests"])),
            observation=observation,
            **arrays,
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self[i] for i in range(len(self)))

    def close(self) -> None:
        """Close the file; arrays already read stay valid."""
        self._file.close()

    def __enter__(self) -> "EpisodeFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
