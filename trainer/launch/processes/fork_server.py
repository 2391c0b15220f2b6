"""The parent's side of the fork server, from which the processes of a command are forked."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainer.cluster import environment, fork_protocol, signals
from trainer.cluster.fork_protocol import Fork


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
            server.directory = Path(tempfile.mkdtemp(prefix="steadfast-"))
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
            self._process.wait()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _is_there(self, variables: dict[str, str]) -> bool:
        connection = fork_protocol.connect(self._socket_path(variables))
        if connection is not None:
            connection.close()
        return connection is not None

    def _socket_path(self, variables: dict[str, str]) -> Path:
        return self.directory / environment.import_digest(variables)
