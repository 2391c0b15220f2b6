"""Starts the worker process, watches it, passes signals on, starts it again after a failure that is nobody's fault.

Imports no TensorFlow: the parent stays small, a crash or hang of TensorFlow cannot take it along, and a sweep leaks
nothing from one point to the next.
"""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from trainer.config import Experiment
from trainer.console import Console
from trainer.exitcodes import CRASHED, RESTARTABLE
from trainer.process import WorkerProcess
from trainer.rundir import RunDirectory


class Supervisor:
    """Runs attempts until one ends for good.

    Args:
        run: the run directory.
        experiment: the effective configuration.
        console: shows messages to the user.
        spare: a worker process that has been started already, for the first attempt.
    """

    def __init__(self, run: RunDirectory, experiment: Experiment, console: Console, spare: WorkerProcess | None = None) -> None:
        self._run, self._experiment, self._console, self._spare = run, experiment, console, spare
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._worker: WorkerProcess | None = None
        self._stopped_by = 0

    def supervise(self) -> int:
        """Runs the workers.

        Returns:
            The exit code for the user: 0, 1, 2, 130 or 143.
        """
        restart = self._experiment.restart
        with self._signals():
            for failures in range(restart.max_restarts + 1):
                code = self._attempt()
                if not _is_restartable(code):
                    return code
                self._console.line(f"warning: worker 0 {_how(code)}; its log is {self._log}")
                if self._stopped_by:
                    # It was to save and leave, and did not come to it: no exit code may say that it did.
                    return CRASHED
                if failures < restart.max_restarts and not self._wait(restart.backoff_secs * 2**failures):
                    return 128 + self._stopped_by
        self._console.error(f"gave up after {restart.max_restarts} restarts (restart.max_restarts); the log is {self._log}")
        return CRASHED

    @property
    def _log(self) -> Path:
        return self._run.path / "logs" / "worker-0.log"

    def _attempt(self) -> int:
        self._worker, self._spare = self._spare or WorkerProcess(), None
        self._worker.assign(self._run, self._experiment, self._log, self._messages)
        try:
            while True:
                message = self._messages.get()
                if message["kind"] == "exit":
                    return int(message["code"])
                self._console.show(message, self._log)
        finally:
            # Reached with a living worker only when this process is in trouble itself.
            if self._worker.process.poll() is None:
                self._worker.discard()

    def _wait(self, secs: float) -> bool:
        """Waits before a restart; returns False if a signal came meanwhile."""
        if self._stopped_by:
            return False
        self._console.line(f"Restarting from the newest checkpoint in {secs:g} s.")
        self._worker = None
        try:
            # Nothing but the signal handler puts a message while no worker runs.
            self._messages.get(timeout=secs)
        except queue.Empty:
            return True
        return False

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
        if self._worker is None:
            self._messages.put({"kind": "stop"})
        else:
            self._worker.signal(number)
        if first:
            self._console.line(f"{signal.Signals(number).name}: saving, then leaving; once more leaves at once.")


def _is_restartable(code: int) -> bool:
    """A process that was killed, or that lost its peers, is nobody's fault; an error in the user's code is."""
    return code < 0 or code == RESTARTABLE


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else "lost its peers"
