"""Processes that are measured together. No TensorFlow.

They communicate with their parent over `Connection(descriptor)`, in lock step: each sends one
message, and all get the same answer. A process that waits for others inside TensorFlow reacts to no
signal but SIGKILL, so all of them are ended by that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any

from benchmarks.harness import ROOT
from trainer.cluster.network_namespace import IsolationError, Namespace

LIMIT_SECS = 900


@dataclass(frozen=True)
class _Member:
    process: subprocess.Popen[bytes]
    connection: Connection
    log: IO[bytes]


class Team:
    """The processes, seen from their parent; they are killed when the context is left.

    Args:
        namespace: the network in which they run; None: the machine's.
        limit_secs: how long they may live.
    """

    def __init__(self, namespace: Namespace | None = None, limit_secs: int = LIMIT_SECS) -> None:
        self._namespace = namespace
        self._limit_secs = limit_secs
        self._deadline = time.monotonic() + limit_secs
        self._members: list[_Member] = []

    def start(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        namespace: Namespace | None = None,
    ) -> None:
        """Start `python -m <module> <arguments> <descriptor>`, in a network of its own if given."""
        network = namespace or self._namespace
        within = network.command if network else list
        ours, theirs = Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its process
        with theirs:
            process = subprocess.Popen(
                within([sys.executable, "-m", module, *arguments, str(theirs.fileno())]),
                cwd=ROOT,
                env=_environment() | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                # The kernel ends it, whatever it does, also when the parent is no more.
                preexec_fn=partial(signal.alarm, self._limit_secs + 10),
            )
        self._members.append(_Member(process, ours, log))

    def hear(self) -> list[Any]:
        """Return one message of each, in the order in which they were started.

        Raises:
            SystemExit: one of them has ended, or it takes too long; with what they said last.
        """
        heard: dict[Connection, Any] = {}
        connections = [member.connection for member in self._members]
        while len(heard) < len(connections):
            # Also those that have been heard: their end must not leave the others waited for.
            readable = wait(connections, timeout=max(0.0, self._deadline - time.monotonic()))
            if not readable:
                raise self._failure(f"took longer than {self._limit_secs} s")
            for connection in readable:
                try:
                    heard[connection] = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise self._failure("ended too early") from None
        return [heard[connection] for connection in connections]

    def tell(self, message: Any) -> None:
        """Answer all of them."""
        for member in self._members:
            member.connection.send(message)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *exception: object) -> None:
        for member in self._members:
            member.process.kill()
        for member in self._members:
            member.process.wait()
            member.connection.close()
            member.log.close()

    def _failure(self, what: str) -> SystemExit:
        said = []
        for number, member in enumerate(self._members):
            member.log.seek(0)
            lines = member.log.read().decode(errors="replace").splitlines()
            said += [f"--- process {number} ---", *lines[-20:]]
        return SystemExit("\n".join([f"a process that was measured {what}", *said]))


def _environment() -> dict[str, str]:
    """Return the environment of all: the same Keras for all, no GPU, no cluster of the shell's."""
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return inherited | {
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


@contextmanager
def network() -> Iterator[Namespace | None]:
    """Return a separate network, without other traffic; None, with a warning, if not permitted."""
    try:
        namespace = Namespace()
    except IsolationError as error:
        print(f"warning: bytes of others are counted too: {error}", file=sys.stderr)
        yield None
        return
    with namespace:
        yield namespace
