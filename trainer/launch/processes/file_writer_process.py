"""The parent's side of the process that writes the checkpoints of a chief: its start, its end."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NoReturn

from trainer.cluster import environment
from trainer.cluster.fork_protocol import SOCKET
from trainer.launch.processes.fork_server import ForkedProcess, ForkServer


class FileWriterProcess:
    """A process of `trainer.worker.file_writing`, forked when it is needed, once.

    Attributes:
        connection: to it, for the chief; what is written there before its start waits for it. The
            other end is closed if there is no such process, or no longer.

    Args:
        server: forks it.
        files: descriptors of the memory that it reads, of the lock of the run, which it shares,
            and of the log.
    """

    def __init__(self, server: ForkServer, files: Sequence[int]) -> None:
        self.connection, self._its_end = socket.socketpair()
        self._server = server
        self._process: ForkedProcess | None = None
        *shared, self._log = files
        socket.send_fds(self.connection, [b"!"], shared)

    def start(self) -> None:
        """Fork the process, unless that was tried before."""
        if self._its_end.fileno() < 0 or self._process is not None:
            return
        command = ["trainer.worker.file_writing", "--socket", SOCKET]
        descriptors = [self._its_end.fileno(), self._log, self._log]
        variables = environment.worker_environment()
        connection = self._server.fork(command, variables, "", descriptors)
        if connection is None:
            self._its_end.close()
        else:
            self._process = ForkedProcess(connection, self._its_end.close, _refuse)

    def end(self) -> None:
        """Kill the process and wait for its end: the next attempt writes to the same files."""
        self._its_end.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _refuse() -> NoReturn:
    raise OSError("a process that writes checkpoints is forked, or there is none")
