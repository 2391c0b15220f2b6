"""The runs that mode=benchmark measures, and their processes, which train until they are ended."""

from __future__ import annotations

import copy
import queue
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.cluster import discovery, environment, messages
from trainer.cluster.network_namespace import Namespace, open_ports_warning
from trainer.cluster.spec import Cluster, ProcessId
from trainer.cluster.stop_requests import SAVE
from trainer.config.rules.batch_sizes import BatchSizes, resolve_batch_sizes
from trainer.config.schema import Experiment, Summary
from trainer.errors import ConfigError
from trainer.launch.processes.fork_server import ForkServer
from trainer.launch.processes.worker_process import Messages, WorkerProcess, log_of
from trainer.launch.resolved_run import open_network, resolve
from trainer.runs.directory import RunDirectory, join_run
from trainer.strategies.strategy import Strategy

_ENDLESS_STEPS = 10**9
_MOST_SIZES = 4
_FIRST_PORT = 20_000  # in a network in which nobody else is


class MeasurementError(Exception):
    """A process that is measured has ended, or does not answer; one line."""


def counts(number: int) -> list[int]:
    """Return the sizes to measure: all up to four, else powers of two and the last."""
    if number <= _MOST_SIZES:
        return list(range(1, number + 1))
    powers = [2**exponent for exponent in range(number.bit_length())]
    return sorted({*(power for power in powers if power < number), number})


@dataclass(frozen=True)
class Host:
    """A host on which processes are measured.

    Attributes:
        address: by which the other hosts reach it.
        namespace: its network.
    """

    address: str
    namespace: Namespace


class Variants:
    """Variants of an experiment: endless, without evaluation, checkpoints and writers.

    Each replica has the same batch in all of them.

    Attributes:
        count: number of processes of the experiment, or of devices if it has one process.
        sizes: its batch sizes.

    Args:
        experiment: the user's.
        strategy: its strategy, resolved.
        folder: for the files of the processes.

    Raises:
        ConfigError: the batch cannot be divided between the replicas.
    """

    def __init__(self, experiment: Experiment, strategy: Strategy, folder: Path) -> None:
        self._experiment = experiment
        self._strategy = strategy
        self._folder = folder
        gpus = len(environment.visible_gpus()) if strategy.uses_gpus else 0
        if experiment.devices.gpus is not None:
            gpus = min(gpus, experiment.devices.gpus)
        self._gpus = gpus
        processes = len(strategy.process_ids(None))
        self.count = processes or strategy.num_replicas() or max(1, gpus)
        self._gpus_of_process = max(1, gpus // processes) if processes else 0
        num_replicas = processes * self._gpus_of_process or self.count
        self.sizes: BatchSizes = resolve_batch_sizes(experiment.batch, num_replicas)

    def counts(self) -> list[int]:
        """Return the numbers of processes or devices to measure."""
        return [self.count] if self._strategy.resized(1) is None else counts(self.count)

    def together(self, count: int) -> Experiment:
        """Return the run with so many processes or devices."""
        replicas = count * (self._gpus_of_process or 1)
        strategy = {**self._experiment.strategy, **(self._strategy.resized(count) or {})}
        variant = self._endless(f"together-{count}", strategy, replicas)
        if self._gpus and self._gpus_of_process:
            # All GPUs of a machine are divided between its processes.
            variant.devices = replace(variant.devices, gpus=replicas)
        return variant

    def alone(self, number: int) -> Experiment:
        """Return the work of one replica, on a device of its own if there are GPUs."""
        device = f"GPU:{number}" if self._gpus else None
        strategy = {"_target_": "trainer.strategies.one_device.OneDevice", "device": device}
        return self._endless(f"alone-{number}", strategy, 1)

    def _endless(self, name: str, strategy: dict[str, Any], replicas: int) -> Experiment:
        variant = copy.deepcopy(self._experiment)
        variant.name = name
        variant.runs_dir = str(self._folder)
        variant.resume = "auto"
        variant.resume_allow = []
        variant.init_from = None
        variant.strategy = strategy
        shards = self.sizes.shards
        variant.batch = replace(
            variant.batch,
            global_size=None,
            per_replica=self.sizes.per_replica,
            shards=None if shards is None else shards // self.sizes.num_replicas * replicas,
        )
        variant.train = replace(
            variant.train, steps=_ENDLESS_STEPS, epochs=None, steps_per_epoch=_ENDLESS_STEPS
        )
        variant.evaluate = replace(
            variant.evaluate, every_steps=None, every_epochs=None, sidecar=False
        )
        variant.checkpoint = replace(
            variant.checkpoint,
            every_steps=None,
            every_examples=None,
            every_epochs=None,
            every_secs=None,
            save_policy=None,
        )
        variant.summary = Summary(every_steps=_ENDLESS_STEPS)
        variant.writers = {}
        return variant


def measure_together(
    runs: Sequence[Experiment], server: ForkServer, hosts: Sequence[Host] = ()
) -> list[dict[str, Any]]:
    """Run all processes of some runs at the same time; return what each has measured.

    All begin to measure when all are warm, and are ended when all have measured.

    Args:
        runs: the variants; one of several processes has a network of its own.
        server: forks the processes.
        hosts: among which the processes of each run are divided; none: they are on one.

    Raises:
        ConfigError: a process finds something wrong with the configuration.
        MeasurementError: a process has failed.
    """
    members: list[tuple[WorkerProcess, RunDirectory, Messages]] = []
    warnings: list[str] = []
    limit_secs = runs[0].watchdog.compile_secs
    with ExitStack() as stack:
        for experiment in runs:
            for cluster, namespace in _places(experiment, hosts, stack, warnings):
                directory = join_run(experiment, str(cluster.process_id))
                stack.callback(directory.release)
                process = WorkerProcess(server, namespace)
                stack.callback(process.discard)
                members.append((process, directory, queue.SimpleQueue()))
                process.assign(directory, experiment, cluster, members[-1][2])
        for _, directory, received in members:
            _next_report(directory, received, limit_secs, warnings)
        for process, _, _ in members:
            process.request(SAVE)
        reports = [
            _next_report(directory, received, limit_secs, warnings)
            for _, directory, received in members
        ]
    for warning in warnings:
        print(warning, file=sys.stderr)
    return reports


def _places(
    experiment: Experiment, hosts: Sequence[Host], stack: ExitStack, warnings: list[str]
) -> list[tuple[Cluster, Namespace | None]]:
    """Return the cluster that each process of a run sees, and its network."""
    resolved = resolve(experiment)
    process_ids = resolved.strategy.process_ids(None)
    if not process_ids:
        return [(Cluster(ProcessId("worker", 0)), None)]
    if hosts:
        numbers = [index * len(hosts) // len(process_ids) for index in range(len(process_ids))]
        addresses = [
            f"{hosts[number].address}:{_FIRST_PORT + index}" for index, number in enumerate(numbers)
        ]
        clusters = discovery.clusters_of(process_ids, addresses, "the benchmark")
        return [(x, hosts[n].namespace) for x, n in zip(clusters, numbers, strict=True)]
    network = stack.enter_context(open_network(experiment, resolved))
    clusters = discovery.local_clusters(process_ids)
    if network.why_open and len(clusters) > 1:
        warnings.append(open_ports_warning(clusters[0].jobs, network.why_open))
    return [(cluster, network.namespace) for cluster in clusters]


def _next_report(
    directory: RunDirectory, received: Messages, limit_secs: float, warnings: list[str]
) -> dict[str, Any]:
    """Wait for the next measurement of a process; keep its warnings."""
    cause = ""
    while True:
        try:
            item = received.get(timeout=limit_secs)
        except queue.Empty:
            raise MeasurementError(
                f"a process has not been heard of for {limit_secs:.0f} s"
            ) from None
        assert item is not None
        process_id, message = item
        match message:
            case messages.Measured(values):
                return dict(values)
            case messages.Problem(lines):
                raise ConfigError(*lines)
            case messages.Crash(_, text):
                cause = text
            case messages.Line() if message.is_warning and message.text not in warnings:
                warnings.append(message.text)
            case messages.Exit(code):
                log = log_of(directory, process_id)
                raise MeasurementError(cause or f"it ended with {code}; its log is {log}")
