"""Messages of arrays over a socket: a header in JSON, then the bytes of each array.

Nothing of a message is executed, whoever sends it.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

_LENGTH = struct.Struct("!Q")
_MAX_HEADER_BYTES = 1 << 20
_MAX_BYTES = 1 << 34


def send(
    connection: socket.socket,
    header: Mapping[str, Any],
    arrays: Sequence[np.ndarray] = (),
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Send a header and arrays, however long the other process takes to read them.

    Args:
        connection: the socket; where it has a timeout, `on_wait` is called whenever that is over.
        header: what `json` can write.
        arrays: of types without objects.
        on_wait: may raise an error to end the wait.

    Raises:
        OSError: the other process is gone.
    """
    contiguous = [np.ascontiguousarray(array) for array in arrays]
    described = [[array.dtype.str, array.shape] for array in arrays]
    content = json.dumps({**header, "arrays": described}).encode()
    pieces = [memoryview(_LENGTH.pack(len(content)) + content)]
    pieces += [array.data.cast("B") for array in contiguous if array.size]
    with _whole_or_closed(connection):
        for piece in pieces:
            while piece:
                try:
                    piece = piece[connection.send(piece) :]
                except TimeoutError:
                    on_wait()


def receive(
    connection: socket.socket,
    on_wait: Callable[[], None] = lambda: None,
    max_bytes: int = _MAX_BYTES,
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the header and the arrays of the next message.

    Args:
        connection: the socket; where it has a timeout, `on_wait` is called whenever that is over.
        on_wait: may raise an error to end the wait.
        max_bytes: the most bytes of all arrays together.

    Raises:
        OSError: the other process is gone.
        ValueError: this is no message.
    """
    with _whole_or_closed(connection):
        (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size, on_wait))
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes is too long")
        header = json.loads(bytes(_read(connection, length, on_wait)))
        kinds = [(np.dtype(name), tuple(shape)) for name, shape in header.pop("arrays")]
        size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
        if size > max_bytes or any(dtype.hasobject for dtype, _ in kinds):
            raise ValueError(f"arrays of {size} bytes cannot be received")
        arrays = [
            np.frombuffer(
                _read(connection, dtype.itemsize * math.prod(shape), on_wait), dtype
            ).reshape(shape)
            for dtype, shape in kinds
        ]
        return header, arrays


@contextmanager
def _whole_or_closed(connection: socket.socket) -> Iterator[None]:
    """Close a connection after an error: the rest of a message would be taken for the next one."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _read(connection: socket.socket, size: int, on_wait: Callable[[], None]) -> bytearray:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        try:
            count = connection.recv_into(view)
        except TimeoutError:
            on_wait()
            continue
        if count == 0:
            raise ConnectionResetError("the other process is gone")
        view = view[count:]
    return content
