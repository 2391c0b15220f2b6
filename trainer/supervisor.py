"""Runs a run's processes, passes signals on to them, starts them again after a failure that is nobody's fault.

Imports no TensorFlow: the parent stays small, a crash or hang of TensorFlow cannot take it along, and a sweep leaks
nothing from one point to the next.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from types import FrameType

from trainer.cluster import Cluster
from trainer.console import Console
from trainer.crash import Failure
from trainer.exitcodes import CRASHED, RESTARTABLE
from trainer.group import SWEEP, Group, left_without_saving
from trainer.ledger import Ledger
from trainer.markers import committed
from trainer.process import WorkerProcess, log_of
from trainer.rundir import RunDirectory
from trainer.schema import Experiment
from trainer.signals import STOP, handled
from trainer.strategies.base import Strategy


class Supervisor:
    """Runs attempts until one ends for good.

    Attributes:
        failures: how each attempt failed that did.

    Args:
        run: the run directory.
        experiment: the effective configuration.
        strategy: what it says of its processes.
        members: gives the processes of an attempt.
        console: shows messages to the user.
        start: starts one process that does not know yet what it is to do.
        ledger: is told of restarts.
        asked: the signals that this process was asked to send itself, each put here before it is sent. Whoever stops a machine sends one
            to every process, and then the other would be the second.
    """

    def __init__(
        self,
        run: RunDirectory,
        experiment: Experiment,
        strategy: Strategy,
        members: Callable[[], list[Cluster]],
        console: Console,
        start: Callable[[], WorkerProcess],
        ledger: Ledger,
        asked: deque[int] | None = None,
    ) -> None:
        self._run, self._experiment, self._strategy, self._members = run, experiment, strategy, members
        self._console, self._start, self._ledger = console, start, ledger
        self._asked = deque() if asked is None else asked
        self.failures: list[Failure] = []
        self._group: Group | None = None
        self._signalled: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._failures, self._newest = 0, self._newest_step()

    def supervise(self) -> int:
        """Runs the processes.

        Returns:
            The exit code for the user: 0, 1, 2, 130 or 143.
        """
        restart = self._experiment.restart
        with handled(self._handle):
            while True:
                self._group = group = Group(
                    self._run, self._experiment, self._strategy, self._members(), self._console, self._start, self._may_restart
                )
                if not self._signalled.empty():
                    return 128 + self._signalled.get()
                code = group.run()
                self._group = None  # from here on a signal is for this object
                if failure := group.failure():
                    self.failures.append(failure)
                if code >= 0 and code != RESTARTABLE:
                    return code
                log = log_of(self._run, group.failed) if group.failed else self._run.path / "logs"
                self._console.line(f"warning: {group.failed} {group.why}; its log is {log}")
                if group.stopped_by():
                    # It was to save and leave, and did not come to it: no exit code may say that it did.
                    self._console.error(left_without_saving(self._run))
                    return CRASHED
                if not self._may_restart():
                    budget = f"gave up after {restart.max_restarts} restarts (restart.max_restarts)"
                    self._console.error(f"{budget}: {group.failed} {group.why}; the log is {log}")
                    return CRASHED
                if number := self._wait(restart.backoff_secs * 2 ** (self._failures - 1)):
                    return 128 + number

    def _may_restart(self) -> bool:
        """Says whether something may be started again; what makes progress may fail for ever."""
        if (newest := self._newest_step()) > self._newest:
            self._newest, self._failures = newest, 0
        self._failures += 1
        return self._failures <= self._experiment.restart.max_restarts

    def _newest_step(self) -> int:
        return max(committed(self._run.path / "checkpoints"), default=0)

    def _wait(self, secs: float) -> int:
        """Waits before a restart; returns the signal that came meanwhile, 0 if none did."""
        self._ledger.enter("restart")
        self._console.cause = ""  # what has been told is not how the run ends
        where = "the newest checkpoint" if self._newest_step() else "the beginning"
        self._console.line(f"Restarting from {where} in {secs:g} s.")
        try:
            return self._signalled.get(timeout=secs)
        except queue.Empty:
            return 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # It may interrupt anything: a queue of this kind alone bears that.
        source = None
        if number in self._asked:
            self._asked.remove(number)
            source = SWEEP
        if self._group is not None:
            self._group.signal(number, source)
        elif number in STOP:
            self._signalled.put(number)
