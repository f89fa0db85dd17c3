"""Starts and ends the processes of workers, and talks to them (torch-free)."""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structrl
from structrl.sims.wire import (
    PROTOCOL,
    Arrays,
    Layout,
    PeerGoneError,
    ProtocolError,
    SharedArrays,
    anonymous_file,
    receive,
    send,
)

OUTPUT_KEPT = 1 << 20  # bytes of a worker's output before the old ones are thrown away
OUTPUT_SHOWN = 4000  # characters of it in a diagnosis

# Makes structrl importable, and nothing else of the trainer's: its site-packages would bring the wrong MuJoCo. There is
# no folder with a link to it, which a killed trainer would leave behind.
_BOOT = """
import sys, importlib.util
if sys.path[:1] == [""]: del sys.path[0]
package, *arguments = sys.argv[1:]
spec = importlib.util.spec_from_file_location("structrl", package + "/__init__.py")
sys.modules["structrl"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from {module} import main
main(arguments)
"""


def run_module(python: str, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `module.main(arguments)` of structrl under another interpreter until it ends; output is captured."""
    command = [python, "-c", _BOOT.format(module=module), str(Path(structrl.__file__).parent), *arguments]
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)


class WorkerFault(Exception):  # noqa: N818 - what happened to a worker, not an error of the trainer
    """A worker died, hangs, raised, or does not keep to the protocol. It is of no use any more.

    Attributes:
        kind: name of the exception in the worker, "" where it did not report one.
        message: its text.
        traceback: of the worker.
    """

    def __init__(self, reason: str, kind: str = "", message: str = "", traceback: str = ""):
        super().__init__(reason)
        self.kind, self.message, self.traceback = kind, message, traceback


class WorkerProcess:
    """One worker: its process, its socket, and what it printed.

    Args:
        python: the interpreter. That of the trainer gets the trainer's module path too, any other one only structrl.
        name: for messages.

    Raises:
        WorkerFault: the interpreter cannot be started.

    Attributes:
        shared: the shared memory, after `share`.
        versions: what the worker runs on, after `handshake`.
    """

    shared: SharedArrays
    versions: dict[str, str]

    def __init__(self, python: str, name: str):
        self.name = name
        self._output = os.fdopen(anonymous_file("output"), "r+b", buffering=0)
        fcntl.fcntl(self._output, fcntl.F_SETFL, fcntl.fcntl(self._output, fcntl.F_GETFL) | os.O_APPEND)
        self._ended = False
        self._sock, theirs = socket.socketpair()
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        if python == sys.executable:
            env["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))  # "" is this folder
        package = str(Path(structrl.__file__).parent)
        in_main = threading.current_thread() is threading.main_thread()
        command = [
            python,
            "-c",
            _BOOT.format(module="structrl.sims.worker"),
            package,
            str(theirs.fileno()),
            str(int(in_main)),
        ]
        try:
            with theirs:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,  # a prompt is an EOFError, not a hang
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=[theirs.fileno()],
                    env=env,
                    start_new_session=True,  # Ctrl-C is the trainer's; and its children can be killed with it
                )
        except OSError as error:
            self._sock.close()
            raise WorkerFault(f"cannot start {python}: {error.strerror}") from None

    def handshake(self, deadline: float) -> None:
        """Take the worker's first message.

        Raises:
            WorkerFault: it does not come, or is that of another version.
        """
        answer, _ = self._receive(deadline)
        self.versions = check_hello(answer)

    def share(self, layout: Layout, deadline: float) -> None:
        """Give the worker memory that both see."""
        fd = anonymous_file("arrays")
        try:
            self.shared = SharedArrays(fd, layout, create=True)
        except OSError as error:
            os.close(fd)
            raise self.fault(str(error)) from None
        try:
            self.request("memory", deadline, layout=layout)
            socket.send_fds(self._sock, [b"M"], [fd])
        except OSError as error:
            raise self.fault(f"is gone ({error}){self._end()}") from None
        finally:
            os.close(fd)
        self.answer(deadline)

    def request(self, op: str, deadline: float, arrays: Arrays | None = None, **fields: Any) -> None:
        """Send a message; exactly one `answer` must follow.

        Raises:
            WorkerFault: it is gone, or does not read.
        """
        self._sock.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            send(self._sock, {"op": op, **fields}, arrays)
        except TimeoutError:
            raise self.fault("does not read") from None
        except OSError as error:
            raise self.fault(f"is gone ({error}){self._end()}") from None

    def answer(self, deadline: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """The answer to the latest message, and its arrays.

        Raises:
            WorkerFault: there is none, or it tells of an exception.
        """
        answer, arrays = self._receive(deadline)
        error = answer.get("error")
        if error is not None:
            text = (
                {k: str(error.get(k, "")) for k in ("kind", "message", "traceback")} if isinstance(error, dict) else {}
            )
            raise self.fault(f"raised {text.get('kind')}: {text.get('message')}", **text)
        return answer, arrays

    def _receive(self, deadline: float) -> tuple[dict[str, Any], dict[str, Any]]:
        begin = time.monotonic()
        try:
            return receive(self._sock, deadline)
        except TimeoutError:
            raise self.fault(f"gave no answer within {max(deadline - begin, 0):.3g} s") from None
        except PeerGoneError as error:
            raise self.fault(f"{error}{self._end()}") from None
        except (ProtocolError, OSError) as error:
            raise self.fault(str(error)) from None

    def fault(self, reason: str, **what: str) -> WorkerFault:
        """The description of a failure."""
        versions = ", ".join(f"{name} {version}" for name, version in getattr(self, "versions", {}).items())
        place = f"process {self.process.pid}{', ' if versions else ''}{versions}"
        return WorkerFault(f"{self.name} ({place}): {reason}", **what)

    def _end(self) -> str:
        """How the process ended that has closed its connection."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "; the process still runs"
        return f"; killed by {signal.Signals(-code).name}" if code < 0 else f"; exit code {code}"

    def output(self) -> str:
        """The end of what it printed."""
        fd = self._output.fileno()
        size = os.fstat(fd).st_size
        return os.pread(fd, OUTPUT_SHOWN, max(size - OUTPUT_SHOWN, 0)).decode("utf-8", "replace").strip()

    def trim(self) -> None:
        """Forget what it printed if that is much."""
        if os.fstat(self._output.fileno()).st_size > OUTPUT_KEPT:
            self._output.truncate(0)

    def kill(self) -> None:
        """End the process and its children, at once."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._sock.close()

    def close(self, seconds: float = 5.0) -> None:
        """Let it close its simulator; end it if that takes longer."""
        if self._ended:
            return
        with contextlib.suppress(WorkerFault, subprocess.TimeoutExpired):
            deadline = time.monotonic() + seconds
            self.request("close", deadline)
            self._receive(deadline)
            self.process.wait(max(deadline - time.monotonic(), 0))
        self.kill()


def check_hello(answer: Mapping[str, Any]) -> dict[str, str]:
    """The versions in a worker's first message.

    Raises:
        WorkerFault: it is of another structrl or protocol.
    """
    versions = answer.get("versions")
    if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
        raise WorkerFault(f"the first message of the worker is none of structrl's: {str(answer)[:200]}")
    ours = {"protocol": PROTOCOL, "structrl": structrl.__version__}
    theirs = {"protocol": answer.get("protocol"), "structrl": versions.get("structrl")}
    for what, mine in ours.items():
        if theirs[what] != mine:
            raise WorkerFault(f"the worker has {what} {theirs[what]}, the trainer {mine}; install the same structrl")
    return dict(versions)


def diagnosis(fault: WorkerFault, process: WorkerProcess | None = None) -> str:
    """A fault with everything that helps to find its cause."""
    parts = [str(fault)]
    if fault.traceback:
        parts.append(f"traceback of the worker:\n{fault.traceback.rstrip()}")
    if process is not None and (output := process.output()):
        parts.append(f"it printed:\n{output}")
    return "\n".join(parts)
