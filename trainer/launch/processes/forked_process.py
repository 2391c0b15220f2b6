"""The parent's side of a process that a fork server forks: what `subprocess.Popen` is to others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from trainer.cluster import fork_protocol
from trainer.cluster.fork_protocol import Ended, Forked
from trainer.errors import RESTARTABLE


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

    def wait(self) -> int:
        """Wait for the end; return the exit code, negative for the signal that killed it."""
        self._has_ended.wait()
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
        code: int | None = None
        while code is None:
            message, descriptors = fork_protocol.receive(self._connection)
            match message:
                case Forked(pid):
                    with self._lock:
                        self._pid = pid
                        (self._pidfd,) = descriptors
                        if self._is_killed:
                            with suppress(ProcessLookupError):  # else nobody would see its end
                                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                    self._release()
                case Ended():
                    code = message.code
                case _ if self._pid:
                    self.has_lost_server = not self._is_killed
                    code = -signal.SIGKILL  # by the kernel
                case _:
                    code = self._do_without_server()
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
