"""The points of a sweep as jobs of submitit: `hydra/launcher=submitit_local` or `submitit_slurm`.

The launcher decides when and where a job runs. The run directory of a point is the same as with
`trainer.sweep.driver`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from trainer.cli.config_loader import config_loader
from trainer.cli.overrides import override_key
from trainer.cluster import environment
from trainer.cluster.signals import forward_to
from trainer.cluster.spec import Cluster
from trainer.cluster.stop_requests import STOP, Decision, StopRequests
from trainer.config.options.constraints import did_you_mean
from trainer.config.schema import GRID_SEARCH, Experiment
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.launch.display.terminal import is_attended
from trainer.runs.directory import read_result
from trainer.runs.status import State, run_status
from trainer.sweep.launchers.launcher_job import LauncherJob
from trainer.sweep.points.points import Point
from trainer.sweep.summary import lock_file, lock_folder

_GROUP = "hydra/launcher"
_LAUNCHERS = ("submitit_local", "submitit_slurm")
_MAX_TIMEOUTS = 100
"""How often a job whose time is over is started again by default; submitit's default is never."""


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that choose a launcher and its options, and all others."""
    settings = [
        override
        for override in overrides
        if override.lstrip("+").startswith((f"{_GROUP}=", "hydra.launcher."))
    ]
    return settings, [override for override in overrides if override not in settings]


def check_launcher(
    settings: Sequence[str],
    experiment: Experiment,
    config_dir: str | None,
    declared: Cluster | None,
) -> None:
    """Check that the chosen launcher is installed and can run this sweep.

    Args:
        settings: the overrides that choose the launcher and its options.
        experiment: the first point.
        config_dir: the user's own folder of choices.
        declared: the cluster that is declared for the points, if any.

    Raises:
        ConfigError: with all problems.
    """
    name = _launcher_name(settings)
    if name is None:
        raise ConfigError(
            f"{settings[0]} is an option of a launcher, and none is chosen; "
            f"add {_GROUP}=submitit_local, or use sweep.jobs"
        )
    if name not in _LAUNCHERS:
        raise ConfigError(
            f"{_GROUP} ({name}): no such launcher; use sweep.jobs, or choose one of: "
            f"{', '.join(_LAUNCHERS)}{did_you_mean(name, _LAUNCHERS)}"
        )
    with config_loader(config_dir) as loader:
        if name not in loader.get_group_options(_GROUP, ObjectType.CONFIG):
            raise ConfigError(
                f"{_GROUP} ({name}) is not installed; "
                "install it with: pip install 'steadfast[submitit]'"
            )
    if problems := list(_unsupported_settings(name, experiment, declared)):
        raise ConfigError(*problems)


def _launcher_name(settings: Sequence[str]) -> str | None:
    names = [
        text.partition("=")[2] for text in settings if text.lstrip("+").startswith(f"{_GROUP}=")
    ]
    return names[-1] if names else None


def _unsupported_settings(
    name: str, experiment: Experiment, declared: Cluster | None
) -> Iterator[str]:
    launcher = f"{_GROUP}={name}"
    sweep = experiment.sweep
    if experiment.search["_target_"] != GRID_SEARCH:
        name = experiment.choices["search"]
        yield f"search ({name}) must be grid with {launcher}; leave the launcher out"
    if sweep.jobs != 1:
        yield f"sweep.jobs ({sweep.jobs}) has no effect with {launcher}; leave it out"
    if sweep.on_error != "continue":
        yield (
            f"sweep.on_error ({sweep.on_error}) must be continue with {launcher}; "
            "the same command retries what failed"
        )
    if name == "submitit_slurm" and experiment.resume == "never":
        yield (
            "resume (never) would start a point afresh each time its job is started again; "
            "leave it out"
        )
    if declared:
        yield (
            f"{declared.source} declares a cluster for one point at a time; leave {launcher} out"
        )


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
        path = str(folder).replace("'", r"\'")
        folders = [
            f"hydra.sweep.dir='{path}'",
            "hydra.sweep.subdir=.",
            f"hydra.launcher.submitit_folder='{path}/submitit'",
        ]
        if _launcher_name(settings) == "submitit_slurm":
            folders.append(f"hydra.launcher.max_num_timeout={_MAX_TIMEOUTS}")
        with config_loader(config_dir) as loader:
            self._config = loader.load_configuration(
                "config", [*folders, *settings], RunMode.MULTIRUN
            )

    def run(self) -> int:
        """Run the points until the last one has ended.

        Returns:
            The exit code, as of `Driver.run`.

        Raises:
            ConfigError: the same sweep is running.
        """
        unfinished = [
            point
            for point in self._points
            if point.experiment.resume == "never" or not read_result(point.path, point.experiment)
        ]
        logs = OmegaConf.select(self._config, "hydra.launcher.submitit_folder")
        num_done = len(self._points) - len(unfinished)
        print(
            f"{len(self._points)} points, {num_done} of them done already; "
            f"the output of the jobs is in {logs}",
            flush=True,
        )
        number = self._launch(unfinished) if unfinished else 0
        states = {run_status(point.path, point.experiment).state for point in self._points}
        if states == {State.DONE}:
            return DONE
        return 128 + number if number else CRASHED

    def _launch(self, points: Sequence[Point]) -> int:
        """Run points as jobs; return the signal that requested a stop, or 0."""
        job = LauncherJob(
            sys.argv,
            self._config_dir,
            list(points[0].varied),
            [list(point.overrides) for point in points],
            lock_file(self._folder),
            socket.gethostname(),
        )
        job_overrides = [list(map(_addable, point.overrides)) for point in points]
        with (
            environment.exported(),
            config_loader(self._config_dir) as loader,
            _held_until_signal(self._folder) as stop_requests,
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


def _addable(override: str) -> str:
    """Return an override that adds its key where Hydra has none: the engine's are not in files."""
    key = override_key(override)
    is_key = "." in key and "@" not in key
    return f"++{override.lstrip('+')}" if is_key and not override.startswith("~") else override


@contextmanager
def _held_until_signal(folder: Path) -> Iterator[StopRequests]:
    """Hold the lock by which jobs go on, until the first stop signal; yield the stop requests.

    A second Ctrl-C ends this process at once.
    """
    stop_requests = StopRequests(is_attended=is_attended())

    def handle(number: int) -> None:
        match stop_requests.decide(number):
            case Decision.LEAVE:
                os._exit(CRASHED)
            case Decision.STOP:
                lock.unlock()
                name = signal.Signals(number).name
                print(
                    f"{name}: the running points save, then leave{stop_requests.hint()}.",
                    flush=True,
                )

    # A save request cannot be forwarded to the jobs, but must end neither them nor the sweep.
    with closing(lock_folder(folder)) as lock, forward_to(handle):
        yield stop_requests


def _block_stop_signals() -> None:
    """Block stop signals in this thread and in the processes that a launcher starts from it.

    Ctrl-C in the terminal would reach those processes too.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
