"""Messages of arrays over a socket: a header in JSON, then the bytes of each array.

Nothing of a message is executed, whoever sends it.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_LENGTH = struct.Struct("!Q")
_MAX_HEADER_BYTES = 1 << 20
_MAX_BYTES = 1 << 34


def send(
    connection: socket.socket, header: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()
) -> None:
    """Send a header and arrays.

    Raises:
        OSError: the other process is gone.
    """
    contiguous = [np.ascontiguousarray(array) for array in arrays]
    described = [[array.dtype.str, array.shape] for array in arrays]
    content = json.dumps({**header, "arrays": described}).encode()
    connection.sendall(_LENGTH.pack(len(content)) + content)
    for array in contiguous:
        if array.size:
            connection.sendall(array.data.cast("B"))


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
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size, on_wait))
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes is too long")
    header = json.loads(bytes(_read(connection, length, on_wait)))
    kinds = [(np.dtype(name), tuple(shape)) for name, shape in header.pop("arrays")]
    size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
    if size > max_bytes or any(dtype.hasobject for dtype, _ in kinds):
        raise ValueError(f"arrays of {size} bytes cannot be received")
    arrays = [
        np.frombuffer(_read(connection, dtype.itemsize * math.prod(shape), on_wait), dtype).reshape(
            shape
        )
        for dtype, shape in kinds
    ]
    return header, arrays


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
