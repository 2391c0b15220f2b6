"""A point of a sweep as a job of one of Hydra's launchers."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from trainer.cluster import environment
from trainer.cluster.messages import Crash, ErrorLine, Exit, Line, Message, Problem
from trainer.cluster.signals import STOP, StopRequests
from trainer.config import loading
from trainer.errors import CRASHED
from trainer.launch.fork_server import ForkServer
from trainer.runs.directory import run_path
from trainer.runs.status import run_status
from trainer.sweep.point_process import PointMessages, PointProcess
from trainer.sweep.points import Point
from trainer.sweep.resources import ResourceShare
from trainer.sweep.sweep_lock import SweepLock

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
        lock: held while the sweep runs.
        parent: PID of the sweep's process, if the launcher's processes are its children and would
            outlive it; otherwise None.
        variables: the environment of the sweep's process, if the launcher changes it; otherwise
            None. Loky sets OMP_NUM_THREADS and others, and no fork server is there for those.
    """

    argv: Sequence[str]
    config_dir: str | None
    varied: Sequence[str]
    lock: SweepLock
    parent: int | None
    variables: Mapping[str, str] | None = None

    def __call__(self, cfg: DictConfig) -> int:
        """Run the point that Hydra has composed; return its exit code."""
        if self.variables is not None:
            environment.replace(self.variables)
        try:
            return self._run(cfg)
        finally:
            if self.parent not in (None, os.getppid()):
                os._exit(CRASHED)

    def _run(self, cfg: DictConfig) -> int:
        sys.argv = list(self.argv)
        # A stop signal goes to every process in the group of the terminal or the scheduler, and a
        # launcher fails if one of its processes dies of it.
        stop_requests = StopRequests()
        for number in STOP:
            signal.signal(number, lambda received, frame: stop_requests.request(received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)

        def must_stop() -> bool:
            return bool(stop_requests.drain()) or not self.lock.is_held()

        if must_stop():
            return 128 + signal.SIGTERM
        point = self._point(cfg)
        messages: PointMessages = queue.SimpleQueue()
        directory = environment.fork_server()
        server = ForkServer(Path(directory)) if directory else None
        process = PointProcess(point, ResourceShare(), self.config_dir, messages, server)
        try:
            code = _wait_for_exit(process, messages, must_stop)
        except BaseException:
            # Submitit raises in this way when the job's time is over or it is preempted, and has
            # the job started again: the point must have saved by then.
            process.forward_signal(signal.SIGTERM)
            while not isinstance(messages.get()[1], Exit):
                pass
            raise
        print(f"{point.label}: {run_status(point.path, point.experiment).state}", flush=True)
        return code

    def _point(self, cfg: DictConfig) -> Point:
        settings = HydraConfig.get()
        overrides = [str(override) for override in settings.overrides.task]
        pairs = (override.partition("=") for override in overrides)
        varied = {key: value for key, _, value in pairs if key in self.varied}
        experiment = loading.load(cfg, settings.runtime.choices)
        return Point(settings.job.num + 1, varied, overrides, experiment, run_path(experiment))


def _wait_for_exit(
    process: PointProcess,
    messages: PointMessages,
    must_stop: Callable[[], bool],
) -> int:
    """Print warnings and errors until the point ends; return its exit code.

    Args:
        process: the point's process.
        messages: its messages.
        must_stop: whether the point must save and exit; it is told so once.
    """
    is_stopping = False
    checked_at = time.monotonic()
    while True:
        try:
            _, message = messages.get(timeout=_POLL_SECS)
        except queue.Empty:
            pass
        else:
            if isinstance(message, Exit):
                return message.code
            for line in _warnings_and_errors(message):
                print(f"{process.point.label}: {line}", flush=True)
        if not is_stopping and time.monotonic() - checked_at >= _POLL_SECS:
            checked_at = time.monotonic()
            if is_stopping := must_stop():
                process.forward_signal(signal.SIGTERM)


def _warnings_and_errors(message: Message) -> list[str]:
    """Return the lines of a message that the user must see; the run's log has the others."""
    match message:
        case Line(text) if message.is_warning:
            return [text]
        case ErrorLine(text) | Crash(cause=text):
            return [f"error: {text}"]
        case Problem(lines):
            return [f"error: {line}" for line in lines]
        case _:
            return []
