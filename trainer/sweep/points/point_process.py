"""The process of one point, as the sweep sees it."""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trainer.cluster import environment
from trainer.cluster.fork_server import SOCKET, ForkServer
from trainer.cluster.messages import Crash, ErrorLine, Message, Problem
from trainer.config import loading
from trainer.files import making_temporary_files
from trainer.launch.processes.child import Child
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


class PointProcess(Child):
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
        variables = environment.point_environment(share.threads, share.gpus)
        if server:
            environment.name_fork_server(variables, str(server.directory))
        # What a process prints that fails before it can send a message.
        with making_temporary_files():
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
        output = self._output.fileno()
        command = ["trainer.sweep.points.point_main", SOCKET]
        super().__init__(command, variables, [output, output], server=server)
        assignment = {
            "argv": sys.argv,
            "cores": share.cores,
            "experiment": loading.plain(point.experiment),
            "overrides": without_sweep_overrides(point.overrides),
            "config_dir": config_dir,
        }
        self.send_line(json.dumps(assignment).encode() + b"\n")

        def read_output(is_read: bool) -> str:
            # `pread` leaves the position alone, at which children of the process may still write.
            content = os.pread(output, _MAX_OUTPUT_BYTES, 0)
            self._output.close()
            return content.decode(errors="replace").strip()

        self.follow(
            lambda message: messages.put((point.number, message)), "", end_output=read_output
        )


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
