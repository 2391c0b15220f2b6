"""What a forked child does to become the process that a fresh one is.

`trainer.worker.forking` forks it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.cluster import environment, network_namespace
from trainer.cluster.fork_protocol import SOCKET, Fork
from trainer.errors import CRASHED
from trainer.worker import process

_READ_BYTES = 1 << 20
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


@dataclass(frozen=True)
class ForkedChild:
    """What a forked child is to become.

    Attributes:
        request: the request.
        directory: the working directory, as a descriptor.
        connection: its socket, as a descriptor.
        output: its standard output, as a descriptor.
        errors: its standard error, as a descriptor.
        namespaces: the network namespace to enter, as descriptors.
    """

    request: Fork
    directory: int
    connection: int
    output: int
    errors: int
    namespaces: Sequence[int] = field(default=())


def become_process(assignment: ForkedChild, server: int) -> None:
    """Make this forked child what a fresh process of the requested module is, and work.

    Args:
        assignment: what it is to be.
        server: the process that has forked it, which it does not outlive.
    """
    request = assignment.request
    os.setsid()
    # User namespaces admit a process of one thread only, and clear what is set next.
    network_namespace.enter(assignment.namespaces)
    _die_with(server)
    os.fchdir(assignment.directory)
    os.sched_setaffinity(0, request.affinity)
    environment.replace(request.environment)
    time.tzset()
    if request.module == process.__name__:  # what the import has printed belongs to every log
        os.write(assignment.errors, os.pread(2, _READ_BYTES, 0))
    os.dup2(assignment.output, 1)
    os.dup2(assignment.errors, 2)
    for file in (
        assignment.directory, assignment.output, assignment.errors, *assignment.namespaces
    ):  # fmt: skip
        os.close(file)
    module: Any = importlib.import_module(request.module)
    number = str(assignment.connection)
    arguments = [number if item == SOCKET else item for item in request.arguments]
    sys.argv = [module.__file__, *arguments]
    tempfile.tempdir = None  # found again from TMPDIR
    random.seed()
    sys.modules["numpy"].random.seed()
    module.work(socket.socket(fileno=assignment.connection), request.began)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, and let its user see it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_DUMPABLE, 1)  # entering a user namespace hides what is in /proc
    if os.getppid() != parent:
        os._exit(CRASHED)
