"""The fork server: imports TensorFlow once, and forks a process on request.

Started by `trainer.cluster.fork_server` as `python -m trainer.worker.forking`. The import
takes 4 seconds of processor time and 400 MB, a fork a few hundredths of a second, and pages that
no process writes to are shared.

A fork is sound only while nothing has been started that it does not copy: this process has one
Python thread, creates no device and no context of TensorFlow, opens no GPU, and imports no code of
the user's (docs/adr/0024-fork-server.md).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import random
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, TypeAlias

from trainer.cluster import environment, fork_server, network_namespace
from trainer.cluster.fork_server import SOCKET, Fork
from trainer.errors import CRASHED
from trainer.worker import process

_READ_BYTES = 1 << 20
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


@dataclass(frozen=True)
class ForkedProcess:
    """A forked process, seen from the server."""

    pid: int
    connection: socket.socket
    scratch: str


Task: TypeAlias = tuple[Fork, Sequence[int]]
"""What a forked process is to become: the request, and descriptors.

They are the working directory, its socket, its output, its errors, and the network namespaces to
enter.
"""


class Server:
    """Forks processes until its command ends.

    It has one thread, and waits in one place.

    Args:
        owner: its other end belongs to the command that has started this process.
    """

    def __init__(self, listener: socket.socket, owner: socket.socket) -> None:
        self._is_over = False
        self._children: set[ForkedProcess] = set()
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], Task | None]] = {}
        self._open: dict[int, socket.socket | int] = {}
        self._watch(listener, select.POLLIN, lambda event: self._accept(listener))
        self._watch(owner, select.POLLIN, lambda event: self._end(owner))

    def serve(self) -> Task | None:
        """Serve; return None when it is over, and in each child what that is to become."""
        while self._children or not self._is_over:
            # One event at a time: its handler may close the descriptor of the next.
            descriptor, event = self._poll.poll()[0]
            if task := self._handlers[descriptor](event):
                return task
        return None

    def _watch(
        self, file: socket.socket | int, events: int, handler: Callable[[int], Task | None]
    ) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        self._open[descriptor] = file
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events)

    def _close(self, file: socket.socket | int) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        if self._open.pop(descriptor, None) is None:
            return
        del self._handlers[descriptor]
        self._poll.unregister(descriptor)
        if isinstance(file, int):
            os.close(file)
        else:
            file.close()

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if fork_server.peer_uid(connection) != os.getuid():
            connection.close()
            return
        self._watch(connection, select.POLLIN, lambda event: self._answer(connection, event))

    def _end(self, owner: socket.socket) -> None:
        self._close(owner)
        self._is_over = True
        for child in self._children:
            self._abandon(child)

    def _answer(self, connection: socket.socket, event: int) -> Task | None:
        if event & select.POLLHUP:  # nothing waits for an answer any more
            self._close(connection)
            return None
        message, descriptors = fork_server.receive(connection)
        if isinstance(message, Fork):
            return self._fork(message, descriptors, connection)
        self._close(connection)
        return None

    def _fork(
        self, request: Fork, descriptors: list[int], connection: socket.socket
    ) -> Task | None:
        importlib.import_module(request.module).prepare()
        try:
            pid = _fork_process()
        except OSError:  # no memory, or too many processes: the command tries a fresh one
            for descriptor in descriptors:
                os.close(descriptor)
            self._close(connection)
            return None
        if not pid:
            for file in list(self._open.values()):
                self._close(file)
            return request, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        child = ForkedProcess(pid, connection, request.scratch)
        self._children.add(child)
        pidfd = os.pidfd_open(pid)
        with suppress(OSError):  # gone: the connection reports it too
            fork_server.send(connection, pid, [pidfd])
        self._watch(pidfd, select.POLLIN, lambda event: self._reap(child, pidfd))
        # No events: the end of a connection is always reported.
        self._watch(connection, 0, lambda event: self._abandon(child))
        return None

    def _abandon(self, child: ForkedProcess) -> None:
        """Kill a process whose command is gone."""
        os.kill(child.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        self._close(child.connection)

    def _reap(self, child: ForkedProcess, pidfd: int) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._close(pidfd)
        self._children.remove(child)
        try:
            fork_server.send(child.connection, os.waitstatus_to_exitcode(status))
        except OSError:  # its command is gone
            shutil.rmtree(child.scratch, ignore_errors=True)
        self._close(child.connection)


def _fork_process() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; those of OpenBLAS end before a fork and start after it.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _check_forkable() -> None:
    """Raise a RuntimeError if a fork would not copy everything that this process has started."""
    from tensorflow.python.eager import context

    if threading.active_count() != 1:
        raise RuntimeError(f"an import has started threads: {threading.enumerate()}")
    if context._context is not None:
        raise RuntimeError("an import has created TensorFlow's context")
    files = {os.path.realpath(path) for path in glob("/proc/self/fd/*")}
    if gpus := [file for file in files if file.startswith("/dev/nvidia")]:
        raise RuntimeError(f"an import has opened GPUs: {', '.join(gpus)}")


def _import_while(owner: socket.socket, directory: Path) -> None:
    """Import what workers need, and exit if the owner ends meanwhile."""
    imported, done = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(owner, 0)  # no events: the end is always reported
        poll.register(imported, 0)
        if imported not in dict(poll.poll()):
            shutil.rmtree(directory, ignore_errors=True)
            os._exit(0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        process.prepare()
    finally:
        os.close(done)
        thread.join()
        os.close(imported)


def become_process(task: Task, server: int) -> None:
    """Make this forked child what a fresh process of the requested module is, and work.

    Args:
        server: the process that has forked it, which it does not outlive.
    """
    request, (directory, connection, output, errors, *namespaces) = task
    os.setsid()
    # User namespaces admit a process of one thread only, and clear what is set next.
    network_namespace.enter(namespaces)
    _die_with(server)
    os.fchdir(directory)
    os.sched_setaffinity(0, request.affinity)
    environment.replace(request.environment)
    time.tzset()
    if request.module == process.__name__:  # what the import has printed belongs to every log
        os.write(errors, os.pread(2, _READ_BYTES, 0))
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for file in (directory, output, errors, *namespaces):
        os.close(file)
    module: Any = importlib.import_module(request.module)
    number = str(connection)
    arguments = [number if item == SOCKET else item for item in request.arguments]
    sys.argv = [module.__file__, *arguments]
    tempfile.tempdir = None  # found again from TMPDIR
    random.seed()
    sys.modules["numpy"].random.seed()
    module.work(socket.socket(fileno=connection), request.began)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, and let its user see it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_DUMPABLE, 1)  # entering a user namespace hides what is in /proc
    if os.getppid() != parent:
        os._exit(CRASHED)


def main() -> None:
    """Serve; in each child, work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    args = parser.parse_args()
    for descriptor in (args.listener, args.owner):
        os.set_inheritable(descriptor, False)
    owner = socket.socket(fileno=args.owner)
    _import_while(owner, args.directory)
    _check_forkable()
    server = os.getpid()
    if task := Server(socket.socket(fileno=args.listener), owner).serve():
        become_process(task, server)
    shutil.rmtree(args.directory, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
