"""Messages of arrays: what comes out is what went in, and what is none is refused."""

import socket
import threading

import numpy as np
import pytest

from trainer.reinforcement.array_messages import receive, send


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_arrays_arrive_as_they_were_sent(pair):
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2], np.zeros((0, 4), np.int64),
        np.array(7, np.uint8), np.ones(300_000),
    ]  # fmt: skip
    sender = threading.Thread(target=send, args=(pair[0], {"a": 1}, arrays))
    sender.start()
    header, received = receive(pair[1])
    sender.join()
    assert header == {"a": 1}
    for array, other in zip(arrays, received, strict=True):
        np.testing.assert_array_equal(array, other)
        assert array.dtype == other.dtype


def test_end_of_the_other_process_is_an_error(pair):
    pair[0].close()
    with pytest.raises(ConnectionResetError):
        receive(pair[1])


@pytest.mark.parametrize("dtype", ["O", "f4"])
def test_objects_and_too_many_bytes_are_refused(pair, dtype):
    content = b'{"arrays": [["%s", [9]]]}' % dtype.encode()
    pair[0].sendall(len(content).to_bytes(8, "big") + content)
    with pytest.raises(ValueError, match="cannot be received"):
        receive(pair[1], max_bytes=8)


def test_header_that_is_too_long_is_refused(pair):
    pair[0].sendall(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ValueError, match="too long"):
        receive(pair[1])


LARGE = np.ones(4_000_000)
"""More than the buffers of a socket hold."""


def test_send_outlasts_timeouts(pair):
    pair[0].settimeout(0.01)
    waits = []
    has_waited = threading.Event()

    def wait():
        waits.append(None)
        if len(waits) == 3:
            has_waited.set()

    sender = threading.Thread(target=send, args=(pair[0], {}, [LARGE], wait))
    sender.start()
    assert has_waited.wait(60)
    _, (received,) = receive(pair[1])
    sender.join()
    np.testing.assert_array_equal(received, LARGE)


def test_message_that_is_given_up_ends_the_connection(pair):
    pair[0].settimeout(0.01)

    def end():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        send(pair[0], {}, [LARGE], end)
    with pytest.raises(ConnectionResetError):
        receive(pair[1])
    with pytest.raises(OSError, match="Bad file descriptor"):
        send(pair[0], {})
