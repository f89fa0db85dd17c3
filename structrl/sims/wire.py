"""What passes between the trainer and its workers (torch-free): JSON messages on a socket, arrays in shared memory.

The other side is not trusted: there is no pickle, every length has a limit, and whatever does not fit is a
`ProtocolError`. A message is one JSON object, and may be followed by arrays whose dtypes and shapes the JSON states.
"""

import json
import math
import mmap
import os
import socket
import struct
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

PROTOCOL = 1  # number of this protocol; both sides must have the same
MAX_TEXT = 1 << 26  # bytes of JSON
MAX_ARRAYS = 1 << 30  # bytes of arrays behind it
_LENGTHS = struct.Struct("!IQ")
_ALIGN = 64

Layout = dict[str, tuple[str, list[int]]]  # name -> (numpy dtype, shape)
Arrays = Mapping[str, np.ndarray]
Answer = tuple[dict[str, Any], dict[str, np.ndarray]]  # what `receive` returns


class ProtocolError(Exception):
    """The other side said something that the protocol does not know."""


class PeerGoneError(ProtocolError):
    """The other side has closed the connection."""


def plain_dtype(dtype: Any, name: str) -> str:
    """The text of a dtype that needs no pickle: booleans, integers, floats.

    Raises:
        ProtocolError: any other dtype.
    """
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise ProtocolError(f"array '{name}' has the unknown dtype {dtype!r}") from None
    if found.kind not in "biuf":
        raise ProtocolError(f"array '{name}' has dtype {found}; only booleans, integers and floats can be sent")
    return found.str


def send(sock: socket.socket, message: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Send one message.

    Raises:
        ProtocolError: an array that cannot be sent; nothing has been sent then.
        OSError: the other side is gone, or does not read (`TimeoutError`).
    """
    arrays = {name: np.asarray(value) for name, value in (arrays or {}).items()}
    about = {name: [plain_dtype(value.dtype, name), list(value.shape)] for name, value in arrays.items()}
    text = json.dumps({"message": message, "arrays": about}).encode()
    blobs = [value.tobytes() for value in arrays.values()]
    sock.sendall(b"".join([_LENGTHS.pack(len(text), sum(map(len, blobs))), text, *blobs]))


def receive(sock: socket.socket, deadline: float | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Wait for one message and its arrays.

    Args:
        sock: a stream socket.
        deadline: of `time.monotonic()`; None waits for ever.

    Raises:
        ProtocolError: what came is no message, or the other side is gone (`PeerGoneError`).
        TimeoutError: no whole message until the deadline.
    """
    text_size, array_size = _LENGTHS.unpack(_exactly(sock, _LENGTHS.size, deadline))
    if text_size > MAX_TEXT or array_size > MAX_ARRAYS:
        raise ProtocolError(f"a message of {text_size} + {array_size} bytes is announced")
    text, blob = _exactly(sock, text_size, deadline), _exactly(sock, array_size, deadline)
    try:
        data = json.loads(text)
        message, about = data["message"], data["arrays"]
        layout = {str(name): (plain_dtype(dtype, name), _shape(shape)) for name, (dtype, shape) in about.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"no message: {type(error).__name__}: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"no message, but a {type(message).__name__}")
    arrays, at = {}, 0
    for name, (dtype, shape) in layout.items():
        size = np.dtype(dtype).itemsize * math.prod(shape)
        if at + size > len(blob):
            raise ProtocolError(f"array '{name}' of shape {shape} is longer than what was sent")
        arrays[name] = np.frombuffer(blob, dtype, math.prod(shape), at).reshape(shape)
        at += size
    if at != len(blob):
        raise ProtocolError(f"{len(blob) - at} bytes belong to no array")
    return message, arrays


def _shape(shape: Any) -> list[int]:
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= MAX_ARRAYS for n in shape):
        raise ProtocolError(f"{shape!r} is no shape")
    return shape


def _exactly(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            sock.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            part = sock.recv(min(size - len(data), 1 << 20))
        except ConnectionError as error:
            raise PeerGoneError(f"it is gone ({error})") from None
        if not part:
            raise PeerGoneError("it is gone")
        data += part
    return data


def anonymous_file(name: str) -> int:
    """A file descriptor of memory without a name in any file system: nothing can be left behind."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"structrl-{name}", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # macOS: the name is removed at once
        return os.dup(file.fileno())


def _allocate(fd: int, size: int) -> None:
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.pwrite(fd, bytes(size), 0)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{size / 2**20:.0f} MB of shared memory for a worker's arrays cannot be had ({error.strerror}): give the "
            "machine or container more memory, or use fewer environments or smaller pictures",
        ) from None


class SharedArrays(dict[str, np.ndarray]):
    """Arrays of a layout in the memory behind a file descriptor; both sides map the same. The descriptor is closed.

    Args:
        fd: from `anonymous_file`.
        layout: the arrays.
        create: make the file as large as the layout asks for.

    Raises:
        OSError: there is no memory for it. (Taken now: a page that is missing later would kill whoever touches it.)
    """

    def __init__(self, fd: int, layout: Layout, create: bool = False):
        super().__init__()
        offsets, size = [], 0
        for dtype, shape in layout.values():
            offsets.append(size)
            size += -(-np.dtype(dtype).itemsize * math.prod(shape) // _ALIGN) * _ALIGN
        try:
            if create:
                _allocate(fd, max(size, 1))
            memory = mmap.mmap(fd, max(size, 1))
        finally:
            if not create:
                os.close(fd)
        for (name, (dtype, shape)), offset in zip(layout.items(), offsets, strict=True):
            self[name] = np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)
