"""A command and its run: the strategy, the cluster, the network, and what the parent uses."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from trainer.cluster import discovery, environment, fault_injection, network_namespace
from trainer.cluster.network_namespace import IsolationError, Namespace
from trainer.cluster.spec import ACTOR, BESIDE, EVALUATOR, Cluster, ProcessId
from trainer.cluster.stop_requests import StopRequests
from trainer.config.rules import batch_sizes, loop
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.launch.display.console import Console
from trainer.launch.engines import ray_connection
from trainer.launch.processes.fork_server import ForkServer
from trainer.runs.directory import RunDirectory
from trainer.strategies import compatibility, select
from trainer.strategies.strategy import Strategy

_STREAM = "trainer.datasets.stream.stream"


@dataclass(frozen=True)
class Command:
    """What the user has typed.

    Attributes:
        experiment: the checked configuration.
        overrides: those of the command line, for the run's record and for `resume=`.
        config_dir: the user's own folder of choices, for the record.
        argv: the words of the command.
        server: forks its processes, started early for this command alone; None: it gets one.
    """

    experiment: Experiment
    overrides: list[str]
    config_dir: str | None = None
    argv: Sequence[str] = field(default_factory=lambda: tuple(sys.argv))
    server: ForkServer | None = None


@dataclass(frozen=True)
class Network:
    """The network of the processes that are started here.

    Attributes:
        namespace: their own, which nothing outside can reach; None: that of the machine.
        why_open: why they have none of their own; None: they have, or they open no port.
    """

    namespace: Namespace | None = None
    why_open: str | None = None


@dataclass(frozen=True)
class ResolvedRun:
    """What a run trains with.

    Attributes:
        strategy: the strategy, decided as far as that is possible without TensorFlow.
        cluster: the cluster as this process sees it; a local one without jobs if none is declared.
    """

    strategy: Strategy
    cluster: Cluster

    @property
    def declared(self) -> Cluster | None:
        """The cluster if it was declared; None: its processes are started here."""
        return None if self.cluster.is_local else self.cluster


@dataclass(frozen=True)
class RunContext:
    """One command's view of its run.

    Attributes:
        experiment: the effective configuration.
        strategy: the resolved strategy.
        directory: the run directory.
        console: shows messages to the user.
        stop_requests: the requests to save or to stop.
        cluster: the cluster as this process sees it; a local one without jobs if none is declared.
        network: the network of the processes that are started here.
    """

    experiment: Experiment
    strategy: Strategy
    directory: RunDirectory
    console: Console
    stop_requests: StopRequests
    cluster: Cluster = field(default_factory=Cluster)
    network: Network = field(default_factory=Network)

    @property
    def declared(self) -> Cluster | None:
        """The cluster if it was declared; None: its processes are started here."""
        return None if self.cluster.is_local else self.cluster


def select_run(experiment: Experiment) -> ResolvedRun:
    """Select the strategy of an experiment and the cluster that is declared for it.

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
        ray_connection.check(experiment, strategy, declared)
    return ResolvedRun(strategy, cluster)


def refuse_declared_cluster(experiment: Experiment, resolved: ResolvedRun) -> None:
    """Refuse a declared cluster for a mode that trains runs of its own.

    Raises:
        ConfigError: one is declared.
    """
    if resolved.declared:
        raise ConfigError(
            f"mode ({experiment.mode}) starts its own processes, and {resolved.declared.source} "
            f"declares a cluster; {experiment.mode} without it"
        )


def resolve(experiment: Experiment) -> ResolvedRun:
    """Select strategy and cluster, and check that the experiment works with them.

    Raises:
        ConfigError: it does not.
    """
    return check(experiment, select_run(experiment))


def check(experiment: Experiment, run: ResolvedRun) -> ResolvedRun:
    """Check that an experiment works with a strategy and a cluster; return what it trains with.

    Raises:
        ConfigError: it does not.
    """
    strategy, cluster = run.strategy, run.cluster
    if strategy.hosts:
        return run
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
        # It joins no other process.
        run = ResolvedRun(strategy, Cluster(cluster.process_id, source=cluster.source))
    _check_faults(experiment, run)
    _check_ray_workers(experiment, strategy)
    loop_name = loop.name_of(experiment)
    if loop_name is not None:
        _check_loop(loop_name, experiment, strategy)
    elif strategy.refuses_streams and (experiment.dataset or {}).get("_target_") == _STREAM:
        raise ConfigError(
            f"dataset (stream) cannot be used with strategy={experiment.choices['strategy']}: "
            f"{strategy.refuses_streams}; choose another strategy or dataset"
        )
    num_replicas = strategy.num_replicas()
    if num_replicas is not None and loop_name is None:
        batch_sizes.resolve_batch_sizes(experiment.batch, num_replicas)
    return run


def no_standby(experiment: Experiment, strategy: Strategy) -> str | None:
    """Return why an experiment can have no standby, whatever the machine; None: it can."""
    name = f"strategy={experiment.choices['strategy']}"
    reasons = {
        "restart.max_restarts (0) allows no restart": experiment.restart.max_restarts == 0,
        "launch.inline (true) starts no processes": experiment.launch.inline,
        "launch.engine (ray) places processes itself": experiment.launch.uses_ray,
        "actors of env act before a restart": experiment.env is not None,
        "a loop of your own may do anything before it restores": loop.name_of(experiment),
        f"{name} restarts lost processes alone": strategy.asynchronous,
        f"{name} has no device for it": not strategy.allows_standby,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _check_beside(experiment: Experiment, cluster: Cluster) -> None:
    """Refuse a process beside the training that has nothing to do, and a learner alone."""
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


def _check_ray_workers(experiment: Experiment, strategy: Strategy) -> None:
    """Refuse a least number of workers on Ray with which the same run could not continue."""
    least = experiment.launch.ray.min_workers
    if least is None or not experiment.launch.uses_ray:
        return
    full = len(strategy.process_ids(None)) or 1
    if least > full:
        raise ConfigError(
            f"launch.ray.min_workers ({least}) must be at most the number of workers ({full})"
        )
    if experiment.batch.per_replica is not None:
        raise ConfigError(
            f"launch.ray.min_workers ({least}) needs a batch that is the same with fewer workers; "
            "use batch.global_size instead of batch.per_replica"
        )
    if (name := loop.name_of(experiment)) is not None:
        raise ConfigError(
            f"launch.ray.min_workers ({least}) cannot be used with loop ({name}): "
            "what a step of your own computes, and the part of a stream that each worker reads, "
            "depend on how many there are; add launch.ray.min_workers=null"
        )


def _check_loop(name: str, experiment: Experiment, strategy: Strategy) -> None:
    """Refuse a strategy under which a loop of the user's own cannot run, or not be continued."""
    if strategy.refuses_loops is not None:
        raise ConfigError(
            f"loop ({name}) cannot be used with strategy={experiment.choices['strategy']}: "
            f"{strategy.refuses_loops}; choose another strategy"
        )


def _check_faults(experiment: Experiment, run: ResolvedRun) -> None:
    if run.declared:
        process_ids = run.declared.process_ids
    else:
        process_ids = run.strategy.process_ids(None) or [Cluster().process_id]
    if experiment.evaluate.sidecar:
        process_ids = [*process_ids, ProcessId(EVALUATOR, 0)]
    if experiment.env is not None:
        actors = (ProcessId(ACTOR, index) for index in range(experiment.actors.count))
        process_ids = [*process_ids, *actors]
    fault_injection.check(
        experiment,
        process_ids,
        run.strategy.service_jobs | BESIDE,
        declared=run.declared is not None,
    )


@contextmanager
def open_network(experiment: Experiment, run: ResolvedRun) -> Iterator[Network]:
    """Create the network of a cluster that is started here, or connect to Ray's, for the block.

    Raises:
        ConfigError: the configuration insists on isolation, and it is impossible here.
    """
    if experiment.launch.uses_ray:
        with ray_connection.connected(experiment.launch.ray):
            yield Network()
        return
    if run.declared or not run.strategy.process_ids(None):
        yield Network()
        return
    isolate = run.strategy.isolate
    network_use = None
    if isolate is not True:
        network_use = network_namespace.needs_network(
            asdict(experiment)
        ) or environment.online_writer(experiment.writers)
    if isolate is False or network_use:
        yield Network(why_open=network_use or "strategy.isolate is false")
        return
    try:
        namespace = Namespace()
    except IsolationError as error:
        if isolate is True:
            raise ConfigError(
                f"strategy.isolate (true) is impossible here: {error}; use auto or false"
            ) from error
        yield Network(why_open=str(error))
        return
    with namespace:
        yield Network(namespace)
