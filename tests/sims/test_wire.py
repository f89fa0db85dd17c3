"""The protocol against a worker that is wrong or hostile, and the first messages."""

import json
import os
import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import structrl
from structrl.sims.process import WorkerFault, check_hello
from structrl.sims.wire import PROTOCOL, ProtocolError, SharedArrays, anonymous_file, receive, send
from structrl.sims.worker import hello

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
MESSAGES = st.dictionaries(st.text(), st.recursive(LEAVES, lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
DTYPES = st.sampled_from(["|b1", "|u1", "<i4", "<i8", "<f4", "<f8"])


@given(MESSAGES, st.dictionaries(st.text(), st.tuples(DTYPES, st.lists(st.integers(0, 4), max_size=3))))
def test_round_trip(message, layout):
    arrays = {k: np.random.default_rng(0).integers(0, 2, shape).astype(dtype) for k, (dtype, shape) in layout.items()}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, message, arrays)
        got, found = receive(theirs, time.monotonic() + 5)
    assert got == message and list(found) == list(arrays)
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def read(data: bytes, close: bool = True):
    """What `receive` makes of raw bytes."""
    ours, theirs = socket.socketpair()
    with theirs, ours:
        thread = threading.Thread(target=lambda: (ours.sendall(data), close and ours.shutdown(socket.SHUT_WR)))
        thread.start()
        try:
            return receive(theirs, time.monotonic() + 0.5)
        finally:
            thread.join()


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        read(data)


def frame(text: bytes, blob: bytes = b"") -> bytes:
    return struct.pack("!IQ", len(text), len(blob)) + text + blob


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("!IQ", 1 << 30, 0), "bytes is announced"),
        (struct.pack("!IQ", 4, 1 << 60), "bytes is announced"),
        (frame(b"[" * 100_000), "no message"),
        (frame(b'{"message": {}}'), "KeyError: 'arrays'"),
        (frame(b'{"message": [], "arrays": {}}'), "no message, but a list"),
        (frame(b'{"message": {}, "arrays": []}'), "no message"),
        (frame(b'{"message": {}, "arrays": {"x": ["|O", [1]]}}', b"12345678"), "only booleans, integers and floats"),
        (frame(b'{"message": {}, "arrays": {"x": ["i4,i4", [1]]}}', b"12345678"), "only booleans"),
        (frame(b'{"message": {}, "arrays": {"x": ["<f4", [-1]]}}'), "is no shape"),
        (frame(b'{"message": {}, "arrays": {"x": ["<f4", [true]]}}'), "is no shape"),
        (frame(b'{"message": {}, "arrays": {"x": ["<f4", [3]]}}', b"1234"), "longer than what was sent"),
        (frame(b'{"message": {}, "arrays": {}}', b"1234"), "4 bytes belong to no array"),
        (frame(b'{"message": {}, "arrays": {}}')[:-3], "it is gone"),
    ],
)
def test_what_is_no_message(data, message):
    with pytest.raises(ProtocolError, match=message):
        read(data)


def test_half_a_message_is_a_time_out():
    with pytest.raises(TimeoutError):
        read(frame(b'{"message": {}, "arrays": {}}')[:-3], close=False)


def test_objects_are_not_sent():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ProtocolError, match="array 'start' has dtype object"):
        send(ours, {}, {"start": np.array([{}], object)})


def test_both_sides_see_the_same_memory():
    layout = {"a": ("|b1", [3]), "nothing": ("<f8", [0, 2]), "b": ("<f8", [2, 2])}
    fd = anonymous_file("test")
    mine = SharedArrays(fd, layout, create=True)
    theirs = SharedArrays(os.dup(fd), layout)
    os.close(fd)
    mine["a"][1], theirs["b"][1, 0] = True, 2.5
    assert theirs["a"].tolist() == [False, True, False] and mine["b"].tolist() == [[0, 0], [2.5, 0]]
    assert mine["nothing"].shape == (0, 2)


def test_versions_must_agree():
    assert check_hello(hello())["numpy"] == np.__version__
    for wrong, told in [
        ({"protocol": PROTOCOL + 1}, f"worker has protocol {PROTOCOL + 1}, the trainer {PROTOCOL}"),
        ({"versions": {"structrl": "0.0.1"}}, f"worker has structrl 0.0.1, the trainer {structrl.__version__}"),
        ({"versions": None}, "none of structrl's"),
    ]:
        with pytest.raises(WorkerFault, match=told):
            check_hello(json.loads(json.dumps(hello() | wrong)))
