"""A simulator in a process of its own, perhaps of another Python (torch-free): runs whole chunks for a `Pool`.

Started by `structrl.sims.process`. It says who it is, then answers one message after the other; actions, conditions and
observations pass through shared memory. When the trainer is gone, so is the worker, whatever it is doing.
"""

import contextlib
import ctypes
import dataclasses
import faulthandler
import os
import platform
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np

import structrl
from structrl.lang.spec import TaskSpec
from structrl.sims.base import Simulator, Start
from structrl.sims.chunks import ChunkRunner
from structrl.sims.registry import construct, load_class
from structrl.sims.wire import PROTOCOL, Arrays, ProtocolError, SharedArrays, plain_dtype, receive, send

FLAGS = ("success", "failed", "unstable", "truncated")
_PR_SET_PDEATHSIG = 1


class Worker:
    """Answers the messages of one trainer; each public method is a message, its arguments the message's fields."""

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._experts: list[Any] = []

    def open(
        self, name: str, target: str, tasks: list[str], num_envs: int, arguments: dict[str, Any], record: bool
    ) -> dict[str, Any]:
        """Construct the simulator; tells what it is."""
        cls = load_class(name, target)
        sim = construct(name, cls, [TaskSpec.from_json(text) for text in tasks], num_envs, arguments)
        self.runner = ChunkRunner(sim, record)
        conditions = self.runner.conditions
        return {
            "control_hz": float(sim.control_hz),
            "action": dataclasses.asdict(sim.action),
            "observation": {k: [plain_dtype(dtype, k), list(shape)] for k, (shape, dtype) in sim.observation.items()},
            "atom_tests": [[dataclasses.asdict(t) for t in sim.atom_tests(row)] for row in range(len(sim.tasks))],
            "own_success": cls.own_success is not Simulator.own_success,
            "num_subtasks": conditions.num_subtasks,
            "num_atoms": conditions.num_atoms,
        }

    def memory(self, layout: dict[str, Any]) -> None:
        """Take the shared memory, whose descriptor comes with the next byte."""
        _, fds, _, _ = socket.recv_fds(self._sock, 1, 1)
        self._shared = SharedArrays(fds[0], layout)

    def reset(self, ids: list[int], starts: list[tuple[int, int, list[int]]]) -> None:
        """`ChunkRunner.reset`, and observe."""
        given = [Start(task, init, tuple(seed)) for task, init, seed in starts]
        self.runner.reset(np.array(ids, np.int64), given)
        self._publish(np.array(ids, np.int64))

    def run(self) -> None:
        """`ChunkRunner.run` with the action in shared memory, and observe the environments that moved."""
        result, shared = self.runner.run(self._shared["action"]), self._shared
        shared["steps"][:], shared["chunk_holds"][:] = result.steps, result.holds
        if result.atoms is not None:
            shared["chunk_atoms"][:], shared["chunk_values"][:] = result.atoms, result.values
        self._publish(np.flatnonzero(result.steps))

    def state(self, ids: list[int]) -> tuple[None, Arrays]:
        """`ChunkRunner.state`."""
        return None, self.runner.state(np.array(ids, np.int64))

    def set_state(self, ids: list[int], arrays: Arrays) -> None:
        """`ChunkRunner.set_state`, and observe."""
        self.runner.set_state(np.array(ids, np.int64), dict(arrays))
        self._publish(np.array(ids, np.int64))

    def expert(self, target: str, arguments: dict[str, Any]) -> None:
        """Construct a scripted expert on the simulator; the first is number 0."""
        self._experts.append(self.runner.make_expert(target, **arguments))

    def expert_reset(self, expert: int, ids: list[int], starts: list[tuple[int, int, list[int]]]) -> None:
        """Begin episodes."""
        given = [Start(task, init, tuple(seed)) for task, init, seed in starts]
        self._experts[expert].reset(np.array(ids, np.int64), given)

    def expert_act(self, expert: int, ids: list[int]) -> tuple[None, Arrays]:
        """Actions of one control step."""
        return None, {"action": np.asarray(self._experts[expert].act(np.array(ids, np.int64)), np.float32)}

    def close(self) -> None:
        """Close the simulator; the last message."""
        if hasattr(self, "runner"):
            self.runner.close()

    def _publish(self, observed: np.ndarray) -> None:
        runner, shared = self.runner, self._shared
        for name in ("t", "task", "holds", *FLAGS):
            shared[name][:] = getattr(runner, name)
        if runner.record:
            shared["atoms"][:], shared["values"][:] = runner.atoms, runner.values
        if len(observed):
            for name, value in runner.observe(observed).items():
                shared[f"observation.{name}"][observed] = value


def hello() -> dict[str, Any]:
    """Who this is: what must agree (`structrl`, `protocol`) and what is worth knowing."""
    versions = {"structrl": structrl.__version__, "python": platform.python_version(), "numpy": np.__version__}
    with contextlib.suppress(metadata.PackageNotFoundError):  # not every simulator has it
        versions["mujoco"] = metadata.version("mujoco")
    return {"protocol": PROTOCOL, "pid": os.getpid(), "versions": versions}


def serve(sock: socket.socket, worker: Worker) -> None:
    """Answer messages until the last one, or until the trainer is gone."""
    while True:
        message, arrays = receive(sock)
        op = message.pop("op")
        if arrays:
            message["arrays"] = arrays
        answer: dict[str, Any] = {}
        out: Arrays = {}
        try:
            method: Callable[..., Any] = getattr(worker, op)
            found = method(**message)
            answer["value"], out = found if isinstance(found, tuple) else (found, {})
            if hasattr(worker, "runner"):
                answer["counts"] = worker.runner.counts
            send(sock, answer, out)
        except OSError:
            if not _connected(sock):
                return
            send(sock, {"error": _described()})
        except BaseException:  # a simulator may also call sys.exit
            send(sock, {"error": _described()})
        if op == "close":
            return


def _described() -> dict[str, str]:
    kind, error, _ = sys.exc_info()
    return {"kind": getattr(kind, "__name__", "?"), "message": str(error), "traceback": traceback.format_exc()}


def _connected(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, _HANGUP)
    return not poll.poll(0)


_HANGUP = getattr(select, "POLLRDHUP", select.POLLHUP)


def _die_with_trainer(sock: socket.socket, by_kernel: bool) -> None:
    """End this process when the trainer is gone, also in the middle of a step.

    The thread sees the closed socket; where that is not enough (a stopped process, a simulator that hangs in C), the
    kernel kills it on Linux. The kernel watches the *thread* that started us: the trainer says if that is its main one.
    """
    if by_kernel and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    def watch() -> None:
        poll = select.poll()
        poll.register(sock, _HANGUP)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main(argv: list[str]) -> None:
    """`worker.py FD BY_KERNEL`: serve the trainer at the other end of socket FD."""
    faulthandler.enable()
    sock = socket.socket(fileno=int(argv[0]))
    _die_with_trainer(sock, by_kernel=argv[1] == "1")
    send(sock, hello())
    with contextlib.suppress(ProtocolError, OSError):  # the trainer is gone
        serve(sock, Worker(sock))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever threads the simulator has left


if __name__ == "__main__":
    main(sys.argv[1:])
