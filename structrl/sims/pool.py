"""Simulators in worker processes, behind the interface of one `ChunkRunner` (torch-free).

E environments are spread over W workers; a message makes every worker run a whole chunk, all at once. What an episode
does is a function of its start and actions alone, so the number of workers changes no result.

A worker that dies, hangs, raises or talks nonsense is killed and rebuilt. Its running episodes are *dropped*: counted,
reported by the next chunk (`ChunkResult.dropped`), and not run again.

Shapes: E environments, H chunk length, A action dims, N padded subtasks.
"""

import logging
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import TaskSpec
from structrl.sims.base import ActionSpec, AtomTest, Ids, Start
from structrl.sims.process import WorkerFault, WorkerProcess, diagnosis
from structrl.sims.remote import RemoteExpert, RemoteSimulator
from structrl.sims.runner import ChunkResult, EpisodeLostError, InvalidStartError, check_actions, check_starts
from structrl.sims.wire import Answer, Layout

log = logging.getLogger(__name__)
STRIKES = 3  # failures of one worker without a chunk between them that stop the run
WINDOW = 100  # messages to workers over which the rate of failures is taken
MAX_RATE = 0.1  # of failures over the window that stops the run


class PoolError(RuntimeError):
    """Workers cannot be started, or fail too often to go on; says what the last one said."""


class Pool:
    """Episodes of E environments in W workers; the interface is `structrl.sims.runner.Runner`.

    Args:
        name: the simulator, as task files say it.
        target: its class, `package.module:Class`, importable by `python`.
        tasks: the task specs, in the order of their row numbers.
        num_envs: E.
        chunk: H, environment steps per chunk.
        arguments: of the simulator, besides those in the task files; plain data.
        workers: W, at most E.
        python: interpreter of the workers; default: this one, with this process' module path.
        record: keep atoms and their measured values of every step.
        timeout: seconds that a worker may take to start, to reset or to run a chunk.
        max_rate: share of failures among the latest 100 messages to workers that stops the run.

    Raises:
        ValueError: what the simulator's constructor raises as such (unknown arguments, tasks that do not fit).
        PoolError: no worker can be started; later, from any method: workers fail too often.

    Attributes:
        counts: those of `ChunkRunner`, and `dropped` episodes and `restarts` of workers.
    """

    def __init__(
        self,
        name: str,
        target: str,
        tasks: Sequence[TaskSpec],
        num_envs: int,
        chunk: int,
        arguments: Mapping[str, Any] | None = None,
        *,
        workers: int = 1,
        python: str | None = None,
        record: bool = False,
        timeout: float = 300.0,
        max_rate: float = MAX_RATE,
    ):
        if not 1 <= workers <= num_envs:
            raise ValueError(f"{workers} workers for {num_envs} environments; give 1 to {num_envs}")
        self.record, self.chunk, self.timeout, self.max_rate = record, chunk, timeout, max_rate
        self._name, self._target, self._python = name, target, python or sys.executable
        self._tasks, self._arguments = tuple(tasks), dict(arguments or {})
        self._parts = [np.asarray(part, np.int64) for part in np.array_split(np.arange(num_envs), workers)]
        self._worker_of = np.repeat(np.arange(workers), [len(part) for part in self._parts])
        self._local = np.arange(num_envs) - np.array([part[0] for part in self._parts])[self._worker_of]
        self._experts: list[tuple[str, dict[str, Any]]] = []
        self._strikes, self._recent = [0] * workers, deque[bool](maxlen=WINDOW)
        self._seen_counts: list[dict[str, int]] = [{} for _ in range(workers)]
        self.counts = {"invalid_starts": 0, "unstable": 0, "failed": 0, "clipped_steps": 0, "dropped": 0, "restarts": 0}
        self._processes: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, _kill, self._processes)
        try:
            self._processes += [self._spawn(w) for w in range(workers)]  # all start at once
            opened = [self._open(w, time.monotonic() + timeout) for w in range(workers)]
        except BaseException as error:
            self._finalizer()
            if not isinstance(error, WorkerFault):
                raise
            if error.kind in ("ValueError", "TypeError"):
                raise ValueError(error.message) from PoolError(diagnosis(error))
            raise PoolError(f"simulator '{name}' cannot be started: {diagnosis(error)}") from None
        self.sim = opened[0]
        self._make_arrays(opened[0])

    def _make_arrays(self, sim: RemoteSimulator) -> None:
        E, (N, atoms) = sim.num_envs, self._sizes
        self.t, self.task = np.zeros((2, E), np.int64)
        self.success, self.failed, self.unstable, self.dropped, self._lost = np.zeros((5, E), bool)
        self.truncated = np.ones(E, bool)  # nothing runs before its first reset
        self.holds = np.zeros((E, N), bool)
        self.atoms, self.values = np.zeros((E, atoms), bool), np.full((E, atoms), np.nan)
        self._observed = {k: np.zeros((E, *shape), dtype) for k, (shape, dtype) in sim.observation.items()}

    # -- workers -------------------------------------------------------------------------------------------------------

    def _spawn(self, w: int) -> WorkerProcess:
        return WorkerProcess(self._python, f"worker {w} of simulator '{self._name}'")

    def _open(self, w: int, deadline: float) -> RemoteSimulator:
        """Take process `w` from its start to a simulator that is ready."""
        process, n = self._processes[w], len(self._parts[w])
        process.handshake(deadline)
        process.request(
            "open", deadline, name=self._name, target=self._target, tasks=[t.to_json() for t in self._tasks],
            num_envs=n, arguments=self._arguments, record=self.record,
        )  # fmt: skip
        try:
            told = process.answer(deadline)[0]["value"]
            sim = RemoteSimulator(
                self._tasks,
                len(self._worker_of),
                float(told["control_hz"]),
                ActionSpec(**{key: tuple(value) for key, value in told["action"].items()}),
                {k: (tuple(map(int, shape)), np.dtype(dtype)) for k, (dtype, shape) in told["observation"].items()},
                tuple(tuple(AtomTest(**test) for test in tests) for tests in told["atom_tests"]),
                process.versions,
            )
            self._sizes = int(told["num_subtasks"]), int(told["num_atoms"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise process.fault(f"describes no simulator ({type(error).__name__}: {error})") from None
        process.share(self._layout(sim, n), deadline)
        for target, arguments in self._experts:
            process.request("expert", deadline, target=target, arguments=arguments)
            process.answer(deadline)
        self._seen_counts[w] = {}
        return sim

    def _layout(self, sim: RemoteSimulator, n: int) -> Layout:
        H, (N, atoms) = self.chunk, self._sizes
        layout: Layout = {
            "action": ("<f4", [n, H, len(sim.action.low)]),
            **{name: ("<i8", [n]) for name in ("t", "task", "steps")},
            **{name: ("|b1", [n]) for name in ("success", "failed", "unstable", "truncated")},
            "holds": ("|b1", [n, N]),
            "chunk_holds": ("|b1", [n, H + 1, N]),
        }
        if self.record:
            layout |= {"atoms": ("|b1", [n, atoms]), "values": ("<f8", [n, atoms])}
            layout |= {"chunk_atoms": ("|b1", [n, H + 1, atoms]), "chunk_values": ("<f8", [n, H + 1, atoms])}
        return layout | {f"observation.{k}": (dt.str, [n, *shape]) for k, (shape, dt) in sim.observation.items()}

    def _call(
        self,
        op: str,
        fields: Mapping[int, Mapping[str, Any]],
        take: Callable[[int, Answer], None] | None = None,
    ) -> None:
        """Send message `op` to the workers of `fields`, then `take` the answers; workers that fail are rebuilt.

        Whatever else happens meanwhile (Ctrl-C) leaves messages without answers: then the pool is closed.
        """
        if not self._finalizer.alive:
            raise PoolError(f"the workers of simulator '{self._name}' are closed")
        try:
            deadline = time.monotonic() + self.timeout
            faults: dict[int, WorkerFault] = {}
            for w, given in fields.items():
                try:
                    self._processes[w].request(op, deadline, **given)
                except WorkerFault as fault:
                    faults[w] = fault
            for w in fields:
                try:
                    if w not in faults:
                        answer = self._processes[w].answer(deadline)
                        if take is not None:
                            take(w, answer)
                        self._count(w, answer[0])
                        self._recent.append(False)
                except WorkerFault as fault:
                    faults[w] = fault
                    if fault.kind == InvalidStartError.__name__:
                        raise InvalidStartError(fault.message) from None
            for w, failed in faults.items():
                self._replace(w, failed)
        except BaseException:
            self._finalizer()
            raise

    def _replace(self, w: int, fault: WorkerFault) -> None:
        """Drop the running episodes of worker `w`, and start it again, several times if need be."""
        part = self._parts[w]
        lost = part[~(self.done | self._lost)[part]]
        self._lost[lost] = True
        self.counts["dropped"] += len(lost)
        while True:
            process = self._processes[w]
            process.kill()
            self._strikes[w] += 1
            self._recent.append(True)
            self.counts["restarts"] += 1
            told = diagnosis(fault, process)
            log.warning("%s; %d running episodes are dropped, the worker is started again", told, len(lost))
            failures = sum(self._recent)
            if self._strikes[w] >= STRIKES:
                raise PoolError(f"a worker failed {STRIKES} times without one chunk between; the last time: {told}")
            if failures > max(self.max_rate * WINDOW, 1):
                raise PoolError(
                    f"{failures} of the latest {len(self._recent)} messages to workers ended in a failure; the last "
                    f"one: {told}"
                )
            try:
                self._processes[w] = self._spawn(w)
                self._open(w, time.monotonic() + self.timeout)
                return
            except WorkerFault as again:
                fault = again

    def _count(self, w: int, answer: Mapping[str, Any]) -> None:
        counts, before = answer.get("counts"), self._seen_counts[w]
        known = {"invalid_starts", "unstable", "failed", "clipped_steps"}
        if not isinstance(counts, dict) or set(counts) != known or not all(type(n) is int for n in counts.values()):
            raise self._processes[w].fault(f"counts {str(counts)[:200]}")
        for key, count in counts.items():
            self.counts[key] += count - before.get(key, 0)
        self._seen_counts[w] = counts

    def _by_worker(self, ids: Ids) -> dict[int, NDArray[np.int64]]:
        """Worker -> positions within `ids` of its environments."""
        owner = self._worker_of[ids]
        return {w: np.flatnonzero(owner == w) for w in np.unique(owner).tolist()}

    # -- the interface -------------------------------------------------------------------------------------------------

    @property
    def done(self) -> NDArray[np.bool_]:
        """[E], environments that stand still until their reset; a loss that no chunk has reported is not done."""
        return self.success | self.failed | self.truncated | self.dropped

    @property
    def lost(self) -> NDArray[np.bool_]:
        """[E], episodes that are lost, reported by a chunk or not yet."""
        return self.dropped | self._lost

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Begin episodes of environments `ids` at `starts`; see `ChunkRunner.reset`.

        Episodes whose worker fails meanwhile are dropped, as the next chunk reports.
        """
        check_starts(ids, starts, len(self._tasks))
        ids = np.asarray(ids, np.int64)
        for flag in (self.success, self.failed, self.unstable, self.truncated, self.dropped, self._lost):
            flag[ids] = False
        self.t[ids], self.task[ids] = 0, [start.task for start in starts]
        self.holds[ids] = False
        fields = {
            w: {
                "ids": self._local[ids[at]].tolist(),
                "starts": [(int(s.task), int(s.init), [int(n) for n in s.seed]) for s in (starts[i] for i in at)],
            }
            for w, at in self._by_worker(ids).items()
        }
        self._call("reset", fields, lambda w, answer: self._take(w, ids[self._worker_of[ids] == w]))

    def run(self, action: NDArray[np.float32]) -> ChunkResult:
        """Execute one chunk: `action` float32 [E, H, A]; see `ChunkRunner.run`."""
        going = ~(self.done | self._lost)
        check_actions(self, action, np.flatnonzero(going))
        E, H = len(going), self.chunk
        if action.shape[1] != H:
            raise ValueError(f"actions of {action.shape[1]} steps, the workers run chunks of {H}")
        steps = np.zeros(E, np.int64)
        holds = np.repeat(self.holds[:, None], H + 1, 1)
        atoms = np.repeat(self.atoms[:, None], H + 1, 1) if self.record else None
        values = np.repeat(self.values[:, None], H + 1, 1) if self.record else None
        busy = [w for w, part in enumerate(self._parts) if going[part].any()]
        for w in busy:
            self._processes[w].shared["action"][:] = action[self._parts[w]]

        def take(w: int, answer: Answer) -> None:
            shared, ids = self._processes[w].shared, self._parts[w][going[self._parts[w]]]
            local = self._local[ids]
            executed = shared["steps"][local].copy()
            if ((executed < 1) | (executed > H)).any():
                raise self._processes[w].fault(f"executed {executed.tolist()} steps of {H}")
            self._take(w, ids)
            steps[ids], holds[ids] = executed, _truth(shared["chunk_holds"][local])
            if atoms is not None and values is not None:
                atoms[ids], values[ids] = _truth(shared["chunk_atoms"][local]), shared["chunk_values"][local]
            self._strikes[w] = 0

        self._call("run", {w: {} for w in busy}, take)
        self.dropped |= self._lost
        self._lost[:] = False
        return ChunkResult(
            holds=holds,
            steps=steps,
            t=self.t.copy(),
            success=self.success.copy(),
            failed=self.failed.copy(),
            unstable=self.unstable.copy(),
            terminated=self.success | self.failed,
            truncated=self.truncated.copy(),
            dropped=self.dropped.copy(),
            atoms=atoms,
            values=values,
        )

    def _take(self, w: int, ids: Ids) -> None:
        """Copy what worker `w` says of environments `ids` out of the shared memory."""
        shared, local = self._processes[w].shared, self._local[ids]
        task, t = shared["task"][local].copy(), shared["t"][local].copy()
        if (task < 0).any() or (task >= len(self._tasks)).any() or (t < 0).any():
            raise self._processes[w].fault(f"reports tasks {task.tolist()} at steps {t.tolist()}")
        self.task[ids], self.t[ids] = task, t
        for name in ("success", "failed", "unstable", "truncated", "holds"):
            getattr(self, name)[ids] = _truth(shared[name][local])
        if self.record:
            self.atoms[ids], self.values[ids] = _truth(shared["atoms"][local]), shared["values"][local]
        for name, array in self._observed.items():
            array[ids] = shared[f"observation.{name}"][local]

    def observe(self, ids: Ids) -> dict[str, np.ndarray]:
        """Observations of environments `ids`; zeros, or the latest one, where the episode is dropped."""
        return {name: array[ids] for name, array in self._observed.items()}

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """Everything to continue the episodes of `ids` bit for bit, each [n, ...]; see `set_state`.

        Raises:
            EpisodeLostError: one of them is dropped, or gets lost now.
        """
        ids = np.asarray(ids, np.int64)
        self._still_there(ids)
        parts = self._by_worker(ids)
        found: dict[int, dict[str, np.ndarray]] = {}
        fields = {w: {"ids": self._local[ids[at]].tolist()} for w, at in parts.items()}
        self._call("state", fields, lambda w, answer: found.update({w: answer[1]}))
        self._still_there(ids)
        first = next(iter(found.values()))
        out = {k: np.empty((len(ids), *value.shape[1:]), value.dtype) for k, value in first.items()}
        for w, at in parts.items():
            for name, value in found[w].items():
                out[name][at] = value
        return out

    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, in the same or other environments of any worker."""
        ids = np.asarray(ids, np.int64)
        for flag in (self.success, self.failed, self.unstable, self.truncated, self.dropped, self._lost):
            flag[ids] = False
        fields = {
            w: {"ids": self._local[ids[at]].tolist(), "arrays": {name: value[at] for name, value in state.items()}}
            for w, at in self._by_worker(ids).items()
        }
        self._call("set_state", fields, lambda w, answer: self._take(w, ids[self._worker_of[ids] == w]))

    def _still_there(self, ids: Ids) -> None:
        gone = ids[self.lost[ids]]
        if len(gone):
            raise EpisodeLostError(f"the episodes of environments {gone.tolist()} are dropped; they have no state")

    def make_expert(self, target: str, **arguments: Any) -> "RemoteExpert":
        """Construct the scripted expert `package.module:Class` in every worker; in rebuilt ones too."""
        workers = range(len(self._processes))
        self._call("expert", {w: {"target": target, "arguments": arguments} for w in workers})
        self._experts.append((target, arguments))
        return RemoteExpert(self, len(self._experts) - 1)

    def close(self) -> None:
        """Close the simulators and end the workers; a second time does nothing."""
        if self._finalizer.detach() is not None:
            for process in self._processes:
                process.close()


def _truth(flags: np.ndarray) -> np.ndarray:
    """Booleans of shared memory, whatever bytes a worker wrote."""
    return flags.view(np.uint8) != 0


def _kill(processes: list[WorkerProcess]) -> None:
    for process in processes:
        process.kill()
