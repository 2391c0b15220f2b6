"""The parent's side of the fork server, and of the processes that it forks."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.cluster import environment, fork_protocol, signals
from trainer.cluster.fork_protocol import Fork
from trainer.errors import RESTARTABLE

END_SECS = 10.0
"""How long a process that was killed may take to end."""

_PREFIX = "steadfast-server-"
_STALE_SECS = 60.0


class ForkServer:
    """A process of `trainer.worker.forking`, or the folder where one listens.

    The name of the socket is a hash of the environment that the server was started with, as far as
    libraries read it when they are imported: with another one nothing is found there.

    Args:
        directory: the folder of the socket.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: socket.socket | None = None
        self._lock = -1

    @classmethod
    def acquire(cls) -> ForkServer:
        """Return the server that this process is to use, started if there is none.

        That is the one that the command which has started this process names, or one of its own.
        """
        variables = environment.worker_environment()
        directory = environment.fork_server()
        if directory and (server := cls(Path(directory)))._is_there(variables):
            return server
        return cls._start(variables)

    @classmethod
    def _start(cls, variables: dict[str, str]) -> ForkServer:
        """Start a server; without one all processes are started afresh."""
        server = cls(Path("/nonexistent"))
        if not fork_protocol.is_supported():
            return server
        try:
            errors = tempfile.TemporaryFile()  # noqa: SIM115
            _remove_stale_folders()
            server.directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
            server._lock = _locked(server.directory)
            listener = fork_protocol.listen(server._socket_path(variables))
        except OSError:  # a file system that is full, or without sockets
            with suppress(OSError):
                server.directory.rmdir()
            return server
        server._owner, owner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = (listener.fileno(), owner.fileno())
        options = zip(("--listener", "--owner"), map(str, descriptors), strict=True)
        with listener, owner, errors, signals.blocked():
            server._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "trainer.worker.forking"),
                    *(item for pair in options for item in pair),
                    *("--directory", str(server.directory)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=descriptors,
                # Its workers end when the command asks them to, not by a signal from a terminal.
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
        """Ask for a process.

        Args:
            command: module and arguments, see `Fork`.
            variables: its environment.
            scratch: the directory of its temporary files, removed with it; empty: it has none.
            descriptors: its socket, standard output, standard error, and network namespaces.

        Returns:
            The connection on which the server reports; None: a fresh process must be started.
        """
        connection = fork_protocol.connect(self._socket_path(variables))
        if connection is None:
            return None
        affinity = sorted(os.sched_getaffinity(0))
        module, *arguments = command
        request = Fork(module, arguments, variables, affinity, scratch, time.time())
        try:
            directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                fork_protocol.send(connection, request, [directory, *descriptors])
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
            ends_within(self._process, END_SECS)
            shutil.rmtree(self.directory, ignore_errors=True)
            self._process = None
            os.close(self._lock)

    def _is_there(self, variables: dict[str, str]) -> bool:
        connection = fork_protocol.connect(self._socket_path(variables))
        if connection is not None:
            connection.close()
        return connection is not None

    def _socket_path(self, variables: dict[str, str]) -> Path:
        return self.directory / environment.import_digest(variables)


def ends_within(process: subprocess.Popen[bytes] | ForkedProcess, secs: float) -> bool:
    """Return whether a process ends within so many seconds.

    One that was killed does not while it waits in the kernel, such as for a file system.
    """
    with suppress(subprocess.TimeoutExpired):
        process.wait(secs)
        return True
    return False


def _locked(folder: Path) -> int:
    """Return a descriptor that locks a folder until this process ends.

    Raises:
        OSError: it is locked, or no folder of this user's.
    """
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


def start_process(
    connection: socket.socket | None,
    release: Callable[[], None],
    start_fresh: Callable[[], subprocess.Popen[bytes]],
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Return a process that a fork server was asked for, or a fresh one.

    Args:
        connection: to the server, see `ForkedProcess`; None: there is none.
        release: called once, when the process has begun: it has its descriptors.
        start_fresh: starts the process without a server.
    """
    if connection:
        return ForkedProcess(connection, release, start_fresh)
    process = start_fresh()
    release()
    return process


class ForkedProcess:
    """A process that a fork server was asked for.

    Attributes:
        has_lost_server: whether it was killed because its server ended.

    Args:
        connection: to the server, which has the request; closing it kills the process.
        release: called once, when the process has begun: it has its descriptors.
        start_fresh: starts the process without a server; called if the server ends before it has
            forked. Where it raises an OSError, the process ends as one to be started again.
    """

    def __init__(
        self,
        connection: socket.socket,
        release: Callable[[], None],
        start_fresh: Callable[[], subprocess.Popen[bytes]],
    ) -> None:
        self.has_lost_server = False
        self._connection = connection
        self._release = release
        self._start_fresh = start_fresh
        self._lock = threading.Lock()
        self._is_killed = False
        self._pidfd: int | None = None
        self._pid = 0
        self._fresh: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._has_ended = threading.Event()
        threading.Thread(target=self._follow, daemon=True, name="fork").start()

    @property
    def pid(self) -> int:
        """The process's id; 0: it has not begun."""
        return self._fresh.pid if self._fresh else self._pid

    def poll(self) -> int | None:
        """Return the exit code; None: the process has not ended."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code, negative for the signal that killed it.

        Raises:
            subprocess.TimeoutExpired: it has not ended within `timeout` seconds.
        """
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """Kill the process, also one that has not begun."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process lives; before it has begun, only SIGKILL has an effect."""
        with self._lock:
            self._is_killed = self._is_killed or number == signal.SIGKILL
            if self._fresh:
                self._fresh.send_signal(number)
            elif self._pidfd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)
            elif self._is_killed and not self._has_ended.is_set():
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)

    def _follow(self) -> None:
        """Receive what the server reports, and do without it if it ends too early."""
        pid, descriptors = fork_protocol.receive(self._connection)
        if pid is None:
            code = self._do_without_server()
        else:
            with self._lock:
                self._pid = pid
                (self._pidfd,) = descriptors
                if self._is_killed:
                    with suppress(ProcessLookupError):  # else nobody would see its end
                        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._release()
            code, _ = fork_protocol.receive(self._connection)
            if code is None:
                self.has_lost_server = not self._is_killed
                code = -signal.SIGKILL  # by the kernel
        with self._lock:
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
            self._connection.close()
            self._code = code
        self._has_ended.set()

    def _do_without_server(self) -> int:
        try:
            with self._lock:
                if self._is_killed:
                    return -signal.SIGKILL
                self._fresh = self._start_fresh()
        except OSError:
            return RESTARTABLE  # what is short now, such as memory, may be there later
        finally:
            self._release()
        return self._fresh.wait()
