"""The parent's side of one point: starts its process, reads its messages, forwards signals."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from trainer.cluster import environment, signals
from trainer.cluster.fork_protocol import SOCKET
from trainer.cluster.messages import Crash, ErrorLine, Exit, Message, Outcome, Problem, decode
from trainer.config import loading
from trainer.files import making_temporary_files
from trainer.launch.processes.fork_server import (
    END_SECS,
    ForkedProcess,
    ForkServer,
    ends_within,
    start_process,
)
from trainer.launch.supervision import exit_codes
from trainer.sweep.search import Point

_SWEEP_GROUPS = ("sweep", "search", "hydra")
_MAX_OUTPUT_BYTES = 1_000_000

PointMessages: TypeAlias = "queue.SimpleQueue[tuple[int | None, Message]]"
"""Messages with the number of the point that sent them; None: the sweep's own process."""


@dataclass(frozen=True)
class ResourceShare:
    """The cores and GPUs of one point.

    Attributes:
        cores: numbers of the processor cores; empty for all.
        gpus: the GPUs, as in CUDA_VISIBLE_DEVICES; None for all.
        threads: number of threads into which TensorFlow divides an operation; None for one a core.
            The result of a sum depends on it to the bit, so it is the number of all cores: the
            numbers of a point do not depend on how many points train in parallel.
    """

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None
    threads: int | None = None


class PointProcess:
    """A process of `point_main`, which runs one point and ends with its parent.

    Args:
        point: the point to run.
        share: the cores and GPUs it may use.
        config_dir: the user's own folder of choices, for the run's record.
        messages: receives the messages of the point, the last of which is `Exit`.
        server: forks it and its workers; None: the point gets one for its workers.
    """

    def __init__(
        self,
        point: Point,
        share: ResourceShare,
        config_dir: str | None,
        messages: PointMessages,
        server: ForkServer | None,
    ) -> None:
        self.point = point
        self.share = share
        self._messages = messages
        self._socket, point_socket = socket.socketpair()
        # What a process prints that fails before it can send a message.
        with making_temporary_files():
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
        variables = environment.point_environment(share.threads, share.gpus)
        if server:
            environment.name_fork_server(variables, str(server.directory))
        descriptor = point_socket.fileno()
        program = [sys.executable, "-P", "-m", "trainer.sweep.points.point_main"]

        def start_fresh() -> subprocess.Popen[bytes]:
            with signals.blocked():  # until it handles them: a scheduler signals all processes
                return subprocess.Popen(
                    [*program, str(descriptor)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=(descriptor,),
                    # Ctrl-C in the terminal must reach the parent alone, which forwards it once.
                    start_new_session=True,
                    env=variables,
                )

        output = self._output.fileno()
        connection = None
        if server:
            descriptors = (descriptor, output, output)
            command = ["trainer.sweep.points.point_main", SOCKET]
            connection = server.fork(command, variables, "", descriptors)
        self._process = start_process(connection, point_socket.close, start_fresh)
        assignment = {
            "argv": sys.argv,
            "cores": share.cores,
            "experiment": loading.plain(point.experiment),
            "overrides": without_sweep_overrides(point.overrides),
            "config_dir": config_dir,
        }
        self._send(json.dumps(assignment))
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def has_lost_server(self) -> bool:
        """Whether it has ended because its fork server has."""
        return isinstance(self._process, ForkedProcess) and self._process.has_lost_server

    def forward_signal(self, number: int) -> None:
        """Have the process handle a signal as if it had received it."""
        self._send(f"signal {int(number)}")

    def kill(self) -> None:
        """Kill the process, and with it its workers."""
        self._process.kill()
        ends_within(self._process, END_SECS)

    def _send(self, line: str) -> None:
        with suppress(OSError):  # it has ended: EPIPE, ECONNRESET, or EBADF after `_receive`
            self._socket.sendall(f"{line}\n".encode())

    def _receive(self) -> None:
        outcome = None
        with suppress(OSError), self._socket.makefile(encoding="utf-8") as lines:
            for line in lines:
                match decode(line):
                    case Outcome(code):
                        outcome = code
                    case message if message:
                        self._put(message)
        code = self._process.wait()
        self._socket.close()
        # `pread` leaves the position alone, at which children of the process may still write.
        output = os.pread(self._output.fileno(), _MAX_OUTPUT_BYTES, 0)
        self._output.close()
        text = output.decode(errors="replace").strip()
        self._put(Exit(exit_codes.reported(code, outcome), text))

    def _put(self, message: Message) -> None:
        self._messages.put((self.point.number, message))


def without_sweep_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a point's own command, without those of the sweep."""
    return [override for override in overrides if _group_of(override) not in _SWEEP_GROUPS]


def _group_of(override: str) -> str:
    key = override.lstrip("+~").partition("=")[0]
    return key.split(".")[0].split("/")[0]


def error_in(message: Message) -> str:
    """Return the error in a message, in one line; empty if there is none."""
    match message:
        case Problem(lines):
            return "; ".join(lines)
        case ErrorLine(text) | Crash(cause=text):
            return text
        case _:
            return ""
