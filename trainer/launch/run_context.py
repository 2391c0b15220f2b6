"""A command and its run: strategy, cluster and directory, each checked and opened."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trainer.cluster import discovery, environment, fault_injection
from trainer.cluster.fork_server import ForkServer
from trainer.cluster.network_namespace import Namespace
from trainer.cluster.schedulers.scheduler import schedulers
from trainer.cluster.signals import StopRequests
from trainer.cluster.spec import ACTOR, BESIDE, EVALUATOR, Cluster, ProcessId
from trainer.config import batch_sizes
from trainer.config.modes import MODES
from trainer.config.schema import Experiment
from trainer.errors import ConfigError, StorageError
from trainer.launch.display import Console, Lines
from trainer.runs.directory import RunDirectory, RunInUseError, join_run, open_run
from trainer.strategies import compatibility, select
from trainer.strategies.strategy import Strategy

_STREAM = "trainer.datasets.stream.stream"
_BUSY_SECS = (
    180.0  # more than schedulers take to kill a process, and NFS to drop a lost host's locks
)
_POLL_SECS = 1.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Command:
    """What the user has typed.

    Attributes:
        server: forks its processes, started early for this command alone; None: it gets one.
    """

    experiment: Experiment
    overrides: list[str] = field(default_factory=list)
    config_dir: str | None = None
    argv: Sequence[str] = field(default_factory=lambda: tuple(sys.argv))
    server: ForkServer | None = None


@dataclass(frozen=True)
class RunContext:
    """A command and what its run uses.

    Attributes:
        cluster: the cluster as this process sees it; a local one without jobs if none is declared.
        namespace: the network of the processes that are started here, which nothing outside can
            reach; None: that of the machine.
        why_open: why they have no separate network; None: they have, or they open no port.
    """

    command: Command
    strategy: Strategy
    directory: RunDirectory
    console: Console
    stop_requests: StopRequests
    cluster: Cluster = field(default_factory=Cluster)
    namespace: Namespace | None = None
    why_open: str | None = None

    @property
    def experiment(self) -> Experiment:
        """The effective configuration."""
        return self.command.experiment


def select_run(experiment: Experiment) -> tuple[Strategy, Cluster]:
    """Select the strategy of an experiment and the cluster that is declared for it.

    Returns:
        The strategy, and the cluster as this process sees it: a local one without jobs if none is
        declared.

    Raises:
        ConfigError: the cluster is declared wrongly, or the strategy cannot run on Ray.
    """
    strategy = select.select_strategy(experiment)
    declared = None
    if strategy.uses_declared_cluster:
        declared = discovery.declared_cluster(strategy.process_ids, environment.current())
    cluster = declared or Cluster()
    strategy, _ = strategy.resolve(cluster)
    if experiment.launch.uses_ray:
        _check_ray(experiment, strategy, declared)
    return strategy, cluster


def resolve(experiment: Experiment) -> tuple[Strategy, Cluster]:
    """Select strategy and cluster; raise a ConfigError if the experiment does not fit them."""
    strategy, cluster = select_run(experiment)
    return strategy, check(experiment, strategy, cluster)


def check(experiment: Experiment, strategy: Strategy, cluster: Cluster) -> Cluster:
    """Check that an experiment works with a strategy and a cluster.

    Returns:
        The cluster; of a process that joins no other one, a cluster of that process alone.
    """
    strategy.check(cluster)
    if experiment.mode != "plan" and not experiment.launch.uses_ray:
        strategy.check_devices()
    compatibility.check(experiment, strategy, cluster)
    if experiment.restart.standby == "always" and (why := no_standby(experiment, strategy)):
        raise ConfigError(
            f"restart.standby (always) has no effect: {why}; add restart.standby=auto"
        )
    _check_beside(experiment, cluster)
    if cluster.process_id.is_beside:
        cluster = Cluster(cluster.process_id, source=cluster.source)
    _check_faults(experiment, strategy, cluster)
    choice = f"strategy={experiment.choices['strategy']}"
    if (loop := experiment.own_loop) is not None:
        if strategy.refuses_loops is not None:
            raise ConfigError(
                f"loop ({loop}) cannot be used with {choice}: {strategy.refuses_loops}; choose "
                "another strategy"
            )
        return cluster
    if strategy.refuses_streams and (experiment.dataset or {}).get("_target_") == _STREAM:
        raise ConfigError(
            f"dataset (stream) cannot be used with {choice}: {strategy.refuses_streams}; choose "
            "another strategy or dataset"
        )
    if (num_replicas := strategy.num_replicas()) is not None:
        batch_sizes.resolve_batch_sizes(experiment.batch, num_replicas)
    return cluster


def no_standby(experiment: Experiment, strategy: Strategy) -> str | None:
    """Return why an experiment can have no standby on any machine; None: it can."""
    name = f"strategy={experiment.choices['strategy']}"
    reasons = {
        "restart.max_restarts (0) allows no restart": experiment.restart.max_restarts == 0,
        "launch.inline (true) starts no processes": experiment.launch.inline,
        "launch.engine (ray) places processes itself": experiment.launch.uses_ray,
        "actors of env act before a restart": experiment.env is not None,
        "a custom loop may do anything before it restores": experiment.own_loop,
        f"{name} restarts lost processes alone": strategy.asynchronous,
        f"{name} has no device for it": not strategy.allows_standby,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _check_beside(experiment: Experiment, cluster: Cluster) -> None:
    """Refuse a process next to the training that has nothing to do, and a learner alone."""
    process_id = cluster.process_id
    if process_id.is_evaluator and not (experiment.trains and experiment.evaluate.sidecar):
        raise ConfigError(
            f"{cluster.source}: {process_id} needs mode=train and "
            "evaluate.sidecar=true in the command of every process; here they are "
            f"{experiment.mode} and {str(experiment.evaluate.sidecar).lower()}"
        )
    if experiment.env is not None and not (experiment.actors.count or cluster.actors):
        raise ConfigError(
            "actors.count (0) leaves the learner without actors, and TF_CONFIG declares none; "
            "add actors.count=2"
        )
    if process_id.is_actor and (not experiment.trains or experiment.env is None):
        raise ConfigError(
            f"{cluster.source}: {process_id} needs mode=train and env=<choice> in the "
            "command of every process"
        )


def _check_ray(experiment: Experiment, strategy: Strategy, declared: Cluster | None) -> None:
    """Refuse what cannot run on Ray, with all problems; `declared` is by the environment."""
    engine, mode = "launch.engine (ray)", MODES[experiment.mode]
    local = "add launch=process"
    jobs = " and ".join(sorted(strategy.service_jobs))
    source = declared.source if declared else ""
    full = len(strategy.process_ids(None)) or 1
    count = experiment.launch.ray.min_workers or 0
    least = f"launch.ray.min_workers ({count})"
    name = experiment.own_loop
    problems = {
        f"{engine} starts the processes of the cluster itself, and {source} declares one; unset "
        f"it, or {local}": declared,
        f"{engine} and launch.inline (true) exclude each other; "
        "use one of them": experiment.launch.inline,
        f"{engine} has no mode={experiment.mode}, which runs here; {local}": not mode.with_ray,
        f"{engine} cannot start again alone, at the same address, a lost process of a strategy "
        f"with the job {jobs}; {local}, or use strategy=multi_worker": jobs,
        f"{engine} cannot place the actors of env; {local}": experiment.env is not None,
        "strategy.isolate (true) is for processes of one machine; leave it out with "
        f"{engine}": strategy.isolate is True,
        f"{least} must be at most the number of workers ({full})": count > full,
        f"{least} needs a batch that is the same with fewer workers; use batch.global_size instead "
        "of batch.per_replica": count and experiment.batch.per_replica is not None,
        f"{least} cannot be used with loop ({name}): what a custom step computes, and the "
        "part of a stream that each worker reads, depend on how many there are; add "
        "launch.ray.min_workers=null": count and name,
    }
    if refused := [problem for problem, is_there in problems.items() if is_there]:
        raise ConfigError(*refused)


def _check_faults(experiment: Experiment, strategy: Strategy, cluster: Cluster) -> None:
    if cluster.is_declared:
        process_ids = cluster.process_ids
    else:
        process_ids = strategy.process_ids(None) or [Cluster().process_id]
    if experiment.evaluate.sidecar:
        process_ids = [*process_ids, ProcessId(EVALUATOR, 0)]
    if experiment.env is not None:
        actors = (ProcessId(ACTOR, index) for index in range(experiment.actors.count))
        process_ids = [*process_ids, *actors]
    fault_injection.check(
        experiment,
        process_ids,
        strategy.service_jobs | BESIDE,
        declared=cluster.is_declared,
    )


def open_directory(
    command: Command, cluster: Cluster, console: Console, requests: StopRequests
) -> RunDirectory | None:
    """Find or create the run directory; in a job of a scheduler, wait until nothing else uses it.

    Args:
        cluster: whether this process is the chief's, which uses the directory alone.

    Returns:
        The directory; None: a stop was requested before.

    Raises:
        ConfigError: another process uses it, or its run cannot continue as this experiment.
        StorageError: it cannot be written to.
    """
    if not cluster.is_chief:
        return join_run(command.experiment, str(cluster.process_id))
    return when_free(lambda: _open(command), console, requests)


def _open(command: Command) -> RunDirectory:
    try:
        return open_run(command.experiment, command.overrides, command.config_dir)
    except StorageError as error:
        # As in /proc, or in another user's folder: the same command will not succeed later.
        if isinstance(error.__cause__, FileNotFoundError | PermissionError):
            raise ConfigError(f"{error}; choose another folder by runs_dir=<directory>") from error
        raise


def when_free(use_run: Callable[[], _T], console: Lines, requests: StopRequests) -> _T | None:
    """Return what `use_run` returns; in a job of a scheduler, wait until nothing else uses the run.

    Args:
        use_run: takes the run; called again after a RunInUseError.

    Returns:
        What it returns; None: a stop was requested before.

    Raises:
        RunInUseError: another process uses the run, still after the wait if there is one.
    """
    variables = environment.current()
    waits = any(scheduler.starts_jobs_again(variables) for scheduler in schedulers())
    end = time.monotonic() + _BUSY_SECS
    is_told = False
    while True:
        try:
            return use_run()
        except RunInUseError as error:
            if not waits or time.monotonic() >= end:
                raise
            if not is_told:
                is_told = True
                console.line(
                    f"warning: {error.run} is in use by {error.holder}, perhaps of this job's "
                    f"last start; waiting up to {_BUSY_SECS:g} s for its end"
                )
        if requests.wait(_POLL_SECS):
            return None
