"""The living processes of an attempt, and what each of them is there for."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

from trainer.cluster.spec import BESIDE, ProcessId
from trainer.launch.engines.ray_process import RayProcess
from trainer.launch.processes.worker_process import WorkerProcess
from trainer.strategies.strategy import Strategy

ManagedProcess: TypeAlias = WorkerProcess | RayProcess
"""One process of an attempt: on this machine, or on a node of a Ray cluster."""


class ProcessSet(dict[ProcessId, ManagedProcess]):
    """The living processes by their id.

    Args:
        strategy: names the jobs that serve, and those that may be restarted alone.
        start: starts one process that has no assignment yet.
    """

    def __init__(self, strategy: Strategy, start: Callable[[ProcessId], ManagedProcess]) -> None:
        super().__init__()
        # These have nothing to save.
        self._service_jobs = strategy.service_jobs | BESIDE
        self._restartable_jobs = strategy.restartable_jobs | BESIDE
        self._start = start

    def start(self, process_id: ProcessId) -> ManagedProcess:
        """Start a process, perhaps again."""
        self[process_id] = process = self._start(process_id)
        return process

    def is_restartable(self, process_id: ProcessId) -> bool:
        """Return whether a process may be restarted alone."""
        return process_id.job in self._restartable_jobs

    def trainers(self) -> list[ProcessId]:
        """Return the processes that run steps."""
        return [process_id for process_id in self if process_id.job not in self._service_jobs]

    def forward(self, number: int) -> None:
        """Forward a request to the processes that train, or to all if none does."""
        trainers = [self[process_id] for process_id in self.trainers()]
        for process in trainers or self.values():
            process.request(number)

    def send_signal(self, name: str, number: int) -> None:
        """Send a signal to the process of this name, if it lives, or to this one."""
        if name == "supervisor":
            os.kill(os.getpid(), number)
        for process_id, process in self.items():
            if str(process_id) == name:
                process.signal(number)

    def dismiss(self, *, is_stop: bool) -> None:
        """Let the processes leave that only serve.

        Args:
            is_stop: whether the training was stopped; if it is done, an evaluator still has the
                last checkpoint to evaluate.
        """
        for process_id, process in self.items():
            if process_id.job in self._service_jobs and (is_stop or not process_id.is_evaluator):
                process.leave()
