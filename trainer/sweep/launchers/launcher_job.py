"""A point of a sweep as a job of one of Hydra's launchers."""

from __future__ import annotations

import queue
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from trainer.cli.compose import Composer
from trainer.cluster import environment
from trainer.cluster.messages import Exit, Line
from trainer.cluster.schedulers import slurm_scheduler
from trainer.cluster.stop_requests import REQUESTS, SAVES, STOP, Decision, StopRequests
from trainer.errors import CRASHED, DONE, WRONG_INPUT
from trainer.files import is_locked
from trainer.runs.identity import run_path
from trainer.runs.status import run_status
from trainer.sweep.points.point_process import PointMessages, PointProcess, error_in
from trainer.sweep.points.points import Point
from trainer.sweep.points.resources import ResourceShare
from trainer.text import printable

_POLL_SECS = 1.0  # between two checks whether the sweep still runs


@dataclass(frozen=True)
class LauncherJob:
    """The function that a launcher calls for every point, in a process of its own choice.

    The point runs in yet another process, as with the driver of this project: it needs signals and
    an environment of its own, and a launcher may use one process for several jobs.

    Attributes:
        argv: the sweep's command line, for the run's record.
        config_dir: the user's own folder of choices, for the run's record.
        varied: the keys in which the points differ.
        overrides: those of each point, by the number of its job.
        lock: a file that is locked while the sweep runs.
        host: where it runs; on others the state of the lock is unknown.
    """

    argv: Sequence[str]
    config_dir: str | None
    varied: Sequence[str]
    overrides: Sequence[Sequence[str]]
    lock: Path
    host: str

    def __call__(self, cfg: Any) -> int:
        """Run the point of the job's number; return its exit code.

        Args:
            cfg: what Hydra has composed, which lacks the keys that the engine adds.
        """
        sys.argv = list(self.argv)
        # A stop signal goes to every process in the group of the terminal or the scheduler, and a
        # launcher fails if one of its processes dies of it.
        requests = JobRequests(self._is_sweep_running)
        if next(requests.signals(), 0):
            return 128 + signal.SIGTERM
        point = self._point(HydraConfig.get().job.num)
        messages: PointMessages = queue.SimpleQueue()
        process = PointProcess(point, ResourceShare(), self.config_dir, messages, None)
        code = _wait_for_exit(process, messages, requests)
        print(f"{point.label}: {run_status(point.path, point.experiment).state}", flush=True)
        if code not in (DONE, CRASHED, WRONG_INPUT):
            requests.requeue()
        return code

    def _is_sweep_running(self) -> bool:
        return self.host != socket.gethostname() or is_locked(self.lock)

    def _point(self, number: int) -> Point:
        overrides = self.overrides[number]
        pairs = (override.partition("=") for override in overrides)
        varied = {key: value for key, _, value in pairs if key in self.varied}
        GlobalHydra.instance().clear()  # that of the launcher, which has composed already
        experiment = Composer(self.config_dir).compose(overrides)
        return Point(number + 1, varied, overrides, experiment, run_path(experiment))


class JobRequests:
    """The requests that reach a job, by signals of its scheduler or by the end of its sweep.

    A launcher that handles a save signal itself does so to have the job started again, because its
    time is over or it is preempted. Starting it again ends it: not before the point has saved.

    Args:
        is_sweep_running: returns whether the sweep of the job runs.
    """

    def __init__(self, is_sweep_running: Callable[[], bool]) -> None:
        self._is_sweep_running = is_sweep_running
        self._requests = StopRequests()
        self._requeue: Callable[[], Any] | None = None
        self._launchers: dict[int, Callable[[int, FrameType | None], Any]] = {
            number: handler for number in SAVES if callable(handler := signal.getsignal(number))
        }
        self._checked_at = -_POLL_SECS
        for number in REQUESTS:
            signal.signal(number, lambda received, frame: self._requests.request(received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)

    def signals(self) -> Iterator[int]:
        """Return the signals that the point must get by now: SIGTERM once, and those to save."""
        while request := self._requests.take():
            number, _ = request
            if handler := self._launchers.get(number):
                self._requeue = partial(handler, number, None)
                number = signal.SIGTERM
            if self._requests.decide(number) in (Decision.SAVE, Decision.STOP):
                yield number
        if not self._requests.number and time.monotonic() - self._checked_at >= _POLL_SECS:
            self._checked_at = time.monotonic()
            if not self._is_sweep_running():
                self._requests.decide(signal.SIGTERM)
                yield signal.SIGTERM

    def requeue(self) -> None:
        """Leave if the job will be started again; have the launcher do so if it asked for the stop.

        Raises:
            SystemExit: the job will be started again.
        """
        if self._requeue is None:
            if self._is_sweep_running() and slurm_scheduler.is_requeued(environment.current()):
                # As the launchers do: with a result the job would count as ended.
                raise SystemExit(-1)
            return
        try:
            self._requeue()
        except Exception as error:
            # As an exception of the job it would end the sweep, and with it the other points.
            print(f"error: {error}", flush=True)


def _wait_for_exit(process: PointProcess, messages: PointMessages, requests: JobRequests) -> int:
    """Print warnings and errors until the point ends; return its exit code."""
    while True:
        with suppress(queue.Empty):
            _, message = messages.get(timeout=_POLL_SECS)
            if isinstance(message, Exit):
                return message.code
            line = f"error: {error}" if (error := error_in(message)) else ""
            if isinstance(message, Line) and message.is_warning:
                line = message.text
            if line:
                print(printable(f"{process.point.label}: {line}"), flush=True)
        for number in requests.signals():
            process.forward_signal(number)
