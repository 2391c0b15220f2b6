"""Tells readers on any host what the processes of this command do, while it runs."""

from __future__ import annotations

import os
import socket
import threading

from trainer.errors import CRASHED
from trainer.launch.run_context import RunContext
from trainer.runs import process_status
from trainer.runs.process_status import HostStatus

_STUCK_SECS = 5.0  # a write that takes longer is not waited for


class StatusWriter:
    """Writes the record of a training command within its `with` block.

    In a thread of its own, so that a slow disk stops nothing else.

    Attributes:
        code: the exit code of the command; set it before the end of the block.
    """

    def __init__(self, context: RunContext) -> None:
        self.code = CRASHED
        self._run_dir = context.directory.path
        self._console = context.console
        self._is_used = context.experiment.trains
        self._name = str(context.cluster.process_id)
        self._cluster = [str(process_id) for process_id in context.cluster.process_ids]
        self._number = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="status")

    def __enter__(self) -> StatusWriter:
        if self._is_used:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._is_used:
            return
        self._end.set()
        self._thread.join(_STUCK_SECS)
        if not self._thread.is_alive():
            self._write(self.code)

    def _run(self) -> None:
        while not self._end.is_set():
            self._write(None)
            self._end.wait(process_status.INTERVAL_SECS)

    def _write(self, code: int | None) -> None:
        host, processes = socket.gethostname(), self._console.statuses()
        status = HostStatus(host, os.getpid(), self._number, self._cluster, processes, code)
        process_status.write(self._run_dir, self._name, status)
        self._number += 1
