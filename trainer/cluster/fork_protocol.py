"""What commands and a fork server say to each other, over a socket in a private folder.

Every request, a `Fork`, has a connection of its own. That of a process lasts as long as the
process: the server answers its pid with a descriptor of the process (pidfd), later its exit code,
negative for the signal that killed it. It kills the process if the connection is closed at the
other end, as it is however a command ends.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 20  # of a message; Linux sends no larger ones
_MAX_DESCRIPTORS = 8

SOCKET = "<socket>"
"""Stands for the number of a socket, which only the process itself knows."""


@dataclass(frozen=True)
class Fork:
    """A request to fork a process.

    Attributes:
        module: what it runs: a module with `prepare`, called in the server, and `work`.
        arguments: its command line, in which SOCKET stands for its socket.
        environment: all environment variables of the process.
        affinity: the cores that it may use.
        scratch: the directory of its temporary files; empty: it has none of its own.
        began: Unix time when it was asked for.
    """

    module: str
    arguments: list[str]
    environment: dict[str, str]
    affinity: list[int]
    scratch: str
    began: float


def is_supported() -> bool:
    """Return whether this system has what a fork server needs: Linux 5.3 or later."""
    if sys.platform != "linux":  # macOS frameworks do not survive a fork
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def listen(path: Path) -> socket.socket:
    """Return a socket that takes requests at a path that does not exist yet.

    Raises:
        OSError: there is something, or the file system has no sockets.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short_path(path) as address:
            listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(path: Path) -> socket.socket | None:
    """Return a connection to the server that listens at a path; None: there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short_path(path) as address:
            connection.connect(address)
        if peer_uid(connection) != os.getuid():
            raise PermissionError
    except OSError:
        connection.close()
        return None
    return connection


def peer_uid(connection: socket.socket) -> int:
    """Return the user of the process at the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _pid, uid, _gid = struct.unpack("3i", credentials)
    return int(uid)


def send(connection: socket.socket, message: Fork | int, descriptors: Sequence[int] = ()) -> None:
    """Send a request, or an answer.

    Raises:
        OSError: the other end is gone, or the message is too long.
    """
    content = message if isinstance(message, int) else asdict(message)
    socket.send_fds(connection, [json.dumps(content).encode()], list(descriptors))


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Return the next message and its descriptors; None: the other end is gone."""
    try:
        content, descriptors, _, _ = socket.recv_fds(connection, _MAX_BYTES, _MAX_DESCRIPTORS)
    except OSError:
        return None, []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # Python 3.11 ignores the flag for that
    if not content:
        return None, []
    message = json.loads(content)
    return (message if isinstance(message, int) else Fork(**message)), descriptors


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield another name of a path: that of a socket may have 107 bytes only."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
