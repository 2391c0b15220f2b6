"""Runs a run's processes, passes signals on to them, starts them again after a failure that is nobody's fault.

Imports no TensorFlow: the parent stays small, a crash or hang of TensorFlow cannot take it along, and a sweep leaks
nothing from one point to the next.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trainer.cluster import Cluster
from trainer.console import Console
from trainer.exitcodes import CRASHED, RESTARTABLE
from trainer.group import Group, how
from trainer.process import WorkerProcess, log_of
from trainer.rundir import RunDirectory
from trainer.schema import Experiment
from trainer.strategies.base import Strategy


class Supervisor:
    """Runs attempts until one ends for good.

    Args:
        run: the run directory.
        experiment: the effective configuration.
        strategy: what it says of its processes.
        members: gives the processes of an attempt.
        console: shows messages to the user.
        start: starts one process that does not know yet what it is to do.
    """

    def __init__(
        self,
        run: RunDirectory,
        experiment: Experiment,
        strategy: Strategy,
        members: Callable[[], list[Cluster]],
        console: Console,
        start: Callable[[], WorkerProcess],
    ) -> None:
        self._run, self._experiment, self._strategy, self._members = run, experiment, strategy, members
        self._console, self._start = console, start
        self._group: Group | None = None
        self._stopped_by, self._stop = 0, threading.Event()
        self._failures = 0

    def supervise(self) -> int:
        """Runs the processes.

        Returns:
            The exit code for the user: 0, 1, 2, 130 or 143.
        """
        restart = self._experiment.restart
        with self._signals():
            while True:
                self._group = Group(
                    self._run, self._experiment, self._strategy, self._members(), self._console, self._start, self._may_restart
                )
                code = self._group.run()
                if code >= 0 and code != RESTARTABLE:
                    return code
                assert self._group.failed is not None
                log = log_of(self._run, self._group.failed)
                self._console.line(f"warning: {self._group.failed} {how(code)}; its log is {log}")
                if self._stopped_by:
                    # It was to save and leave, and did not come to it: no exit code may say that it did.
                    return CRASHED
                backoff = restart.backoff_secs * 2**self._failures
                if not self._may_restart():
                    self._console.error(f"gave up after {restart.max_restarts} restarts (restart.max_restarts); the log is {log}")
                    return CRASHED
                self._group = None
                if not self._wait(backoff):
                    return 128 + self._stopped_by

    def _may_restart(self) -> bool:
        self._failures += 1
        return self._failures <= self._experiment.restart.max_restarts

    def _wait(self, secs: float) -> bool:
        """Waits before a restart; returns False if a signal came meanwhile."""
        self._console.line(f"Restarting from the newest checkpoint in {secs:g} s.")
        return not self._stop.wait(secs)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._handle) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self._stopped_by
        self._stopped_by = self._stopped_by or number
        self._stop.set()
        if self._group is not None:
            self._group.signal(number)
        if first:
            self._console.line(f"{signal.Signals(number).name}: saving, then leaving; once more leaves at once.")
