"""The points of a sweep through one of Hydra's launchers: `hydra/launcher=joblib` or `submitit_local`. No TensorFlow.

The launcher decides when a job runs, and where. All that a point is, and leaves behind, is as with our own driver.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from trainer import cluster
from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.exitcodes import CRASHED, DONE
from trainer.outcome import Outcome, State, outcome_of
from trainer.rules import did_you_mean
from trainer.rundir import result_of
from trainer.schema import Experiment
from trainer.searchpath import searched
from trainer.signals import SAVE, STOP
from trainer.sweep.job import Job, Leash
from trainer.sweep.points import Point

_GROUP = "hydra/launcher"
_EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"}


def split(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Gives the overrides that choose a launcher and its options, and all others."""
    settings = [item for item in overrides if item.lstrip("+").startswith((f"{_GROUP}=", "hydra.launcher."))]
    return settings, [item for item in overrides if item not in settings]


def check(settings: Sequence[str], experiment: Experiment, config_dir: str | None, declared: Cluster | None) -> None:
    """Checks that there is such a launcher, and that it can do what is asked for.

    Args:
        settings: the overrides that choose it and its options.
        experiment: the first point.
        config_dir: the user's own directory of choices.
        declared: the cluster that is declared for the points, if any.

    Raises:
        ConfigError: with all problems.
    """
    name = _name(settings)
    if name is None:
        raise ConfigError(f"{settings[0]} is an option of a launcher, and none is chosen; add {_GROUP}=joblib, or use sweep.jobs")
    with searched(config_dir), hydra.initialize_config_module("trainer.conf", version_base="1.3"):
        known = GlobalHydra.instance().config_loader().get_group_options(_GROUP, ObjectType.CONFIG)
    if name == "basic":
        raise ConfigError(f"{_GROUP} (basic) cannot run points at a time, or resume them; leave it out")
    if name not in known and name in _EXTRAS:
        raise ConfigError(f"{_GROUP} ({name}) is not installed; install it with: pip install 'steadfast[{_EXTRAS[name]}]'")
    if name not in known:
        choices = sorted({*known, *_EXTRAS} - {"basic"})
        raise ConfigError(f"{_GROUP} ({name}): no such launcher; choose one of: {', '.join(choices)}{did_you_mean(name, choices)}")
    problems = list(_cannot(name, experiment, declared))
    if problems:
        raise ConfigError(*problems)


def _cannot(name: str, experiment: Experiment, declared: Cluster | None) -> Iterator[str]:
    """Says what a launcher cannot do, which is told of all points at once."""
    chosen, sweep = f"{_GROUP}={name}", experiment.sweep
    if experiment.search.method != "grid":
        yield f"search.method ({experiment.search.method}) learns from points one after the other; leave {chosen} out"
    if sweep.jobs != 1:
        how = f"use hydra.launcher.n_jobs={sweep.jobs}" if name == "joblib" else "leave it out"
        yield f"sweep.jobs ({sweep.jobs}) has no effect with {chosen}; {how}"
    if sweep.on_error != "continue":
        yield f"sweep.on_error ({sweep.on_error}) must be continue with {chosen}; the same command tries again what failed"
    if declared:
        yield f"{declared.source} declares a cluster for one point at a time; leave {chosen} out"


class Launched:
    """The points of a sweep as jobs of a launcher.

    Args:
        points: all there are; those that are done are no jobs.
        settings: the overrides that choose the launcher and its options.
        config_dir: the user's own directory of choices.
        folder: where the launcher leaves its files.

    Raises:
        ConfigError: the launcher has no such option.
    """

    def __init__(self, points: Sequence[Point], settings: Sequence[str], config_dir: str | None, folder: Path) -> None:
        self._points, self._config_dir, self._folder = points, config_dir, folder
        name = _name(settings) or ""
        self._by_joblib = name == "joblib"
        path = str(folder).replace("'", r"\'")
        places = [f"hydra.sweep.dir='{path}'", "hydra.sweep.subdir=."]
        if name.startswith("submitit"):
            places.append(f"hydra.launcher.submitit_folder='{path}/submitit'")
        with self._hydra() as loader:
            self._config = loader.load_configuration("config", [*places, *settings], RunMode.MULTIRUN)

    @property
    def outcomes(self) -> dict[int, tuple[Point, Outcome]]:
        """What each point came to, by its number."""
        return {point.number: (point, outcome_of(point.path, point.experiment)) for point in self._points}

    def run(self) -> int:
        """Runs the points, to the end of the last one.

        Returns:
            The exit code: 0 all points succeeded, 1 not all, 130 or 143 stopped after saving.

        Raises:
            ConfigError: the same sweep is running.
        """
        waiting = [point for point in self._points if point.experiment.resume == "never" or not result_of(point.path, point.experiment)]
        logs = OmegaConf.select(self._config, "hydra.launcher.submitit_folder")
        where = f"; what the jobs say is in {logs}" if logs else ""
        print(f"{len(self._points)} points, {len(self._points) - len(waiting)} of them done already{where}", flush=True)
        signalled = self._launch(waiting) if waiting else []
        if all(outcome.state is State.DONE for _, outcome in self.outcomes.values()):
            return DONE
        return 128 + signalled[0] if signalled else CRASHED

    def _launch(self, points: Sequence[Point]) -> list[int]:
        """Gives the signals that came meanwhile."""
        leash = Leash(self._folder / ".lock")
        job = Job(sys.argv, self._config_dir, list(points[0].varied), leash, os.getpid() if self._by_joblib else None)
        jobs = [list(point.overrides) for point in points]
        cluster.share_imports()
        with self._hydra() as loader, _released_by_signal(leash.hold()) as signalled, ThreadPoolExecutor(1, initializer=_deaf) as thread:
            HydraConfig.instance().set_config(self._config)
            launcher = Plugins.instance().instantiate_launcher(HydraContext(loader, Callbacks()), job, self._config)
            try:
                for job_return in thread.submit(launcher.launch, jobs, 0).result():
                    _ = job_return.return_value  # raises what a job has raised
            except BaseException:
                if not signalled:  # what has not begun to run yet dies of it
                    raise
        return signalled

    @contextmanager
    def _hydra(self) -> Iterator[ConfigLoader]:
        with searched(self._config_dir), hydra.initialize_config_module("trainer.conf", version_base="1.3", job_name="steadfast"):
            yield GlobalHydra.instance().config_loader()


def _name(settings: Sequence[str]) -> str | None:
    return next((item.partition("=")[2] for item in reversed(settings) if item.lstrip("+").startswith(f"{_GROUP}=")), None)


@contextmanager
def _released_by_signal(descriptor: int) -> Iterator[list[int]]:
    """Lets the jobs go when a stop is requested, and waits for them; the second time, leaves at once. Gives the signals that came."""
    signalled: list[int] = []

    def handle(number: int, frame: Any) -> None:
        signalled.append(number)
        if len(signalled) > 1:
            os._exit(128 + number)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        print(f"{signal.Signals(number).name}: the running points save, then leave; once more leaves at once.", flush=True)

    before = {number: signal.signal(number, handle) for number in STOP}
    before[SAVE] = signal.signal(SAVE, signal.SIG_IGN)  # there is no way to the points for it, but it must not end the sweep
    try:
        yield signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(descriptor)


def _deaf() -> None:
    """Blocks requests to stop in this thread, and in the processes that a launcher starts from it: Ctrl-C would reach those too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
