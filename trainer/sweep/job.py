"""A point of a sweep as a job of one of Hydra's launchers, and what binds it to its sweep. No TensorFlow."""

from __future__ import annotations

import fcntl
import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from trainer import config
from trainer.errors import ConfigError
from trainer.exitcodes import CRASHED
from trainer.files import writing
from trainer.outcome import outcome_of
from trainer.rundir import path_of
from trainer.signals import STOP
from trainer.sweep.points import Point
from trainer.sweep.process import PointProcess
from trainer.sweep.slots import Slot

_LOOK_SECS = 1.0  # between two looks whether the sweep goes on


@dataclass(frozen=True)
class Leash:
    """A file that a sweep keeps locked for as long as its jobs are to go on; when it is killed, it keeps it no longer.

    Attributes:
        path: the file.
        host: where the sweep runs. A job elsewhere is its scheduler's to stop.
    """

    path: Path
    host: str = field(default_factory=socket.gethostname)

    def hold(self) -> int:
        """Takes the lock; gives the descriptor that has it.

        Raises:
            ConfigError: another command has it.
        """
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(f"{self.path.parent}: the same sweep is running; wait for it, or stop it") from None
        return descriptor

    def is_held(self) -> bool:
        """Says whether the sweep goes on."""
        if self.host != socket.gethostname():
            return True
        try:
            with self.path.open("rb") as opened:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # somebody has removed it
        return False


@dataclass(frozen=True)
class Job:
    """What a launcher calls for every point, in a process of its own choice.

    The point has yet another process, as with our own driver: it needs signals and an environment of its own, and a launcher may use
    one process for several jobs.

    Attributes:
        argv: the sweep's command line, for the record.
        config_dir: the user's own directory of choices, likewise.
        varied: the keys in which the points differ.
        leash: tells whether the sweep goes on.
        parent: the sweep's process, if the launcher's are its children; they would outlive it by minutes.
    """

    argv: Sequence[str]
    config_dir: str | None
    varied: Sequence[str]
    leash: Leash
    parent: int | None

    def __call__(self, cfg: DictConfig) -> int:
        """Runs the point that Hydra has composed; gives its exit code."""
        try:
            return self._run(cfg)
        finally:
            if self.parent not in (None, os.getppid()):
                os._exit(CRASHED)

    def _run(self, cfg: DictConfig) -> int:
        sys.argv = list(self.argv)
        # A request to stop reaches whoever is in the terminal's or the scheduler's group; and a launcher bears the end of none of its own.
        signalled: list[int] = []
        for number in STOP:
            signal.signal(number, lambda received, frame: signalled.append(received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)

        def stops() -> bool:
            return bool(signalled) or not self.leash.is_held()

        if stops():
            return 128 + signal.SIGTERM
        point = self._point(cfg)
        messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        process = PointProcess(point, Slot(), self.config_dir, messages)
        try:
            code = _follow(point, process, messages, stops)
        except BaseException:
            # Submitit leaves in this way when the job's time is over, or it must make room; it has the job started again.
            process.request(signal.SIGTERM)
            while messages.get()["kind"] != "exit":
                pass
            raise
        print(f"{point.label}: {outcome_of(point.path, point.experiment).state}", flush=True)
        return code

    def _point(self, cfg: DictConfig) -> Point:
        settings = HydraConfig.get()
        overrides = [str(item) for item in settings.overrides.task]
        pairs = (item.partition("=") for item in overrides)
        varied = {key: value for key, _, value in pairs if key in self.varied}
        experiment = config.load(cfg, settings.runtime.choices)
        return Point(settings.job.num + 1, varied, overrides, experiment, path_of(experiment))


def _follow(point: Point, process: PointProcess, messages: queue.SimpleQueue[dict[str, Any]], stops: Callable[[], bool]) -> int:
    """Shows what the user should know, until the point ends; asks it to save and leave, once, when it is to stop."""
    asked, looked = False, time.monotonic()
    while True:
        try:
            message = messages.get(timeout=_LOOK_SECS)
        except queue.Empty:
            message = {"kind": "nothing"}
        if message["kind"] == "exit":
            return message["code"]
        for line in _told(message):
            print(f"{point.label}: {line}", flush=True)
        if not asked and time.monotonic() - looked >= _LOOK_SECS:
            looked = time.monotonic()
            if asked := stops():
                process.request(signal.SIGTERM)


def _told(message: dict[str, Any]) -> list[str]:
    """Gives what concerns the user: a run's own log has the rest."""
    if message["kind"] == "line" and message["text"].startswith("warning: "):
        return [message["text"]]
    if message["kind"] in ("error", "crash"):
        return [f"error: {message['text' if message['kind'] == 'error' else 'cause']}"]
    return [f"error: {line}" for line in message["lines"]] if message["kind"] == "problem" else []
