"""The client's side of the fork server, and their messages.

A command starts the server, a process of `trainer.worker.forking`, and requests processes over a
socket in a private folder. Every request, a `Fork`, has its own connection. That of a process
lasts as long as the process: the server answers its pid with a descriptor of the process (pidfd),
later its exit code, negative for the signal that killed it. It kills the process if the connection
is closed at the other end, as it is however a command ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.cluster import environment, signals

END_SECS = 10.0
"""How long a process that was killed may take to end."""

SOCKET = "<socket>"
"""A placeholder for the number of a socket, which only the process itself has."""

_PREFIX = "steadfast-server-"
_STALE_SECS = 60.0
_MAX_BYTES = 1 << 20  # of a message; Linux sends no larger ones
_MAX_DESCRIPTORS = 8


@dataclass(frozen=True)
class Fork:
    """A request to fork a process.

    Attributes:
        arguments: its command line, in which SOCKET stands for its socket.
        scratch: the directory of its temporary files; empty: none.
    """

    module: str
    arguments: Sequence[str]
    environment: dict[str, str]
    affinity: list[int]
    scratch: str
    began: float


class ForkServer:
    """A process of `trainer.worker.forking`, or the folder where one listens.

    The name of the socket is a hash of the environment that the server was started with, as far as
    libraries read it when they are imported: with another one nothing is found there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: socket.socket | None = None
        self._lock = -1

    @classmethod
    def acquire(cls) -> ForkServer:
        """Return the server that this process is to use, started if there is none.

        That is the one that the command which has started this process names, or a new one.
        """
        variables = environment.worker_environment()
        if directory := environment.fork_server():
            server = cls(Path(directory))
            if connection := connect(server._socket_path(variables)):
                connection.close()
                return server
        return cls._start(variables)

    @classmethod
    def _start(cls, variables: dict[str, str]) -> ForkServer:
        """Start a server; without one all processes are started afresh."""
        server = cls(Path("/nonexistent"))
        if not is_supported():
            return server
        try:
            errors = tempfile.TemporaryFile()  # noqa: SIM115
            _remove_stale_folders()
            server.directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
            server._lock = _locked(server.directory)
            listener = listen(server._socket_path(variables))
        except OSError:  # a file system that is full, or without sockets
            with suppress(OSError):
                server.directory.rmdir()
            return server
        server._owner, owner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends = {"--listener": listener.fileno(), "--owner": owner.fileno()}
        words = [word for name, end in ends.items() for word in (name, str(end))]
        with listener, owner, errors, signals.blocked():
            server._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "trainer.worker.forking", *words),
                    *("--directory", str(server.directory)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=list(ends.values()),
                # Its workers end when the command requests it, not by a signal from a terminal.
                start_new_session=True,
                env=variables,
            )
        return server

    def fork(
        self,
        command: Sequence[str],
        variables: dict[str, str],
        scratch: str,
        descriptors: Sequence[int],
    ) -> socket.socket | None:
        """Request a process.

        Args:
            descriptors: its socket, standard output, standard error, and network namespaces.

        Returns:
            The connection on which the server reports; None: a fresh process must be started.
        """
        connection = connect(self._socket_path(variables))
        if connection is None:
            return None
        affinity = sorted(os.sched_getaffinity(0))
        module, *arguments = command
        request = Fork(module, arguments, variables, affinity, scratch, time.time())
        try:
            directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                send(connection, request, [directory, *descriptors])
            finally:
                os.close(directory)
        except OSError:
            connection.close()
            return None
        return connection

    def scratch(self) -> Path | None:
        """Return a folder for temporary files of workers; None: that of the system."""
        return self.directory if self.directory.is_dir() else None

    def release(self) -> None:
        """End the server, unless it is another command's."""
        if self._owner is not None:
            self._owner.close()
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECS)
            shutil.rmtree(self.directory, ignore_errors=True)
            self._process = None
            os.close(self._lock)

    def _socket_path(self, variables: dict[str, str]) -> Path:
        return self.directory / environment.import_digest(variables)


def _locked(folder: Path) -> int:
    """Lock a folder of this user's until this process ends, or raise an OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it is another user's")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_stale_folders() -> None:
    """Remove the folders of commands that were killed together with their servers."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > _STALE_SECS:  # a new one gets its lock soon
                lock = _locked(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


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
    """Return a socket that takes requests at a new path, or raise an OSError."""
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
    """Return a connection to the server that listens at a path, or None."""
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
    """Send a request or an answer; raise an OSError if the other end is gone or it is too long."""
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
