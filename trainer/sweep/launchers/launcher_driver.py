"""Runs the points of a sweep as jobs of one of Hydra's launchers.

The launcher decides when and where a job runs. The run directory of a point is the same as with
`trainer.sweep.driver`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from trainer.cli.config_loader import config_loader
from trainer.cluster import environment
from trainer.cluster.signals import forward_to
from trainer.cluster.stop_requests import STOP, Decision, StopRequests
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.files import Lock
from trainer.launch.display.terminal import is_attended
from trainer.runs.directory import read_result
from trainer.runs.status import State, run_status
from trainer.sweep.launchers.hydra_launchers import launcher_name
from trainer.sweep.launchers.launcher_job import LauncherJob
from trainer.sweep.points.points import Point, PointResult
from trainer.sweep.points.sweep_lock import SweepLock

_MAX_TIMEOUTS = 100
"""How often a job whose time is over is started again by default; submitit's default is never."""


class LauncherDriver:
    """Runs the points of a grid by a launcher.

    Args:
        points: all points of the sweep; finished ones become no jobs.
        settings: the overrides that choose the launcher and its options.
        config_dir: the user's own folder of choices.
        folder: the sweep's folder, which receives the launcher's files.

    Raises:
        ConfigError: the launcher has no such option.
    """

    def __init__(
        self, points: Sequence[Point], settings: Sequence[str], config_dir: str | None, folder: Path
    ) -> None:
        self._points = points
        self._config_dir = config_dir
        self._folder = folder
        name = launcher_name(settings) or ""
        path = str(folder).replace("'", r"\'")
        folders = [f"hydra.sweep.dir='{path}'", "hydra.sweep.subdir=."]
        if name.startswith("submitit"):
            folders.append(f"hydra.launcher.submitit_folder='{path}/submitit'")
        if name == "submitit_slurm":
            folders.append(f"hydra.launcher.max_num_timeout={_MAX_TIMEOUTS}")
        with config_loader(config_dir) as loader:
            self._config = loader.load_configuration(
                "config", [*folders, *settings], RunMode.MULTIRUN
            )

    @property
    def results(self) -> dict[int, PointResult]:
        """The outcome of every point by its number, read from the run directories."""
        return {
            point.number: PointResult(point, run_status(point.path, point.experiment))
            for point in self._points
        }

    def run(self) -> int:
        """Run the points until the last one has ended.

        Returns:
            The exit code: 0 all points succeeded, 1 not all, 130 or 143 stopped after saving.

        Raises:
            ConfigError: the same sweep is running.
        """
        unfinished = [
            point
            for point in self._points
            if point.experiment.resume == "never" or not read_result(point.path, point.experiment)
        ]
        logs = OmegaConf.select(self._config, "hydra.launcher.submitit_folder")
        logs_note = f"; the output of the jobs is in {logs}" if logs else ""
        num_done = len(self._points) - len(unfinished)
        print(f"{len(self._points)} points, {num_done} of them done already{logs_note}", flush=True)
        number = self._launch(unfinished) if unfinished else 0
        if all(result.outcome.state is State.DONE for result in self.results.values()):
            return DONE
        return 128 + number if number else CRASHED

    def _launch(self, points: Sequence[Point]) -> int:
        """Run points as jobs; return the signal that requested a stop, or 0."""
        job = LauncherJob(
            sys.argv,
            self._config_dir,
            list(points[0].varied),
            SweepLock(self._folder / ".lock"),
        )
        job_overrides = [list(point.overrides) for point in points]
        with (
            environment.exported(),
            config_loader(self._config_dir) as loader,
            _held_until_signal(job.lock) as stop_requests,
            ThreadPoolExecutor(1, initializer=_block_stop_signals) as thread,
        ):
            HydraConfig.instance().set_config(self._config)
            launcher = Plugins.instance().instantiate_launcher(
                HydraContext(loader, Callbacks()), job, self._config
            )
            try:
                for job_return in thread.submit(launcher.launch, job_overrides, 0).result():
                    _ = job_return.return_value  # raises the job's exception
            except BaseException:
                if not stop_requests.number:  # a stop makes jobs fail that have not begun
                    raise
        return stop_requests.number


@contextmanager
def _held_until_signal(lock: SweepLock) -> Iterator[StopRequests]:
    """Hold the lock, by which jobs go on; release it at the first stop signal.

    A second Ctrl-C ends this process at once.

    Yields:
        The stop requests that have been received.

    Raises:
        ConfigError: the same sweep is running.
    """
    file = lock.acquire()
    if file is None:
        raise ConfigError(f"{lock.path.parent}: the same sweep is running; wait for it, or stop it")
    with closing(file), _stop_signals_release(file) as stop_requests:
        yield stop_requests


@contextmanager
def _stop_signals_release(file: Lock) -> Iterator[StopRequests]:
    stop_requests = StopRequests(is_attended=is_attended())

    def handle(number: int) -> None:
        match stop_requests.decide(number):
            case Decision.LEAVE:
                os._exit(CRASHED)
            case Decision.STOP:
                file.unlock()
                name = signal.Signals(number).name
                print(
                    f"{name}: the running points save, then leave{stop_requests.hint()}.",
                    flush=True,
                )

    # A save request cannot be forwarded to the jobs, but must end neither them nor the sweep.
    with forward_to(handle):
        yield stop_requests


def _block_stop_signals() -> None:
    """Block stop signals in this thread and in the processes that a launcher starts from it.

    Ctrl-C in the terminal would reach those processes too.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
