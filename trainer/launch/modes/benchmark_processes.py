"""The processes that mode=benchmark measures: they train until it has heard enough of them."""

from __future__ import annotations

import queue
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from trainer.cluster import discovery, messages
from trainer.cluster.network_namespace import Namespace, open_ports_warning
from trainer.cluster.spec import Cluster, ProcessId
from trainer.cluster.stop_requests import SAVE
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.launch.processes.fork_server import ForkServer
from trainer.launch.processes.worker_process import Messages, WorkerProcess, log_of
from trainer.launch.resolved_run import open_network, resolve
from trainer.runs.directory import RunDirectory, join_run


class MeasurementError(Exception):
    """A process that is measured has ended, or does not answer; one line."""


@dataclass(frozen=True)
class _Member:
    process: WorkerProcess
    directory: RunDirectory
    messages: Messages


class BenchmarkProcesses(ExitStack):
    """Processes that are measured at the same time; they are ended when the context is left.

    Args:
        server: forks them.
        limit_secs: longest time in which none of them makes itself heard.
    """

    def __init__(self, server: ForkServer, limit_secs: float) -> None:
        super().__init__()
        self._server = server
        self._limit_secs = limit_secs
        self._members: list[_Member] = []
        self.warnings: list[str] = []

    def start(self, experiment: Experiment) -> None:
        """Start the processes of a run, in a network of its own if it has several.

        Raises:
            ConfigError: the experiment cannot be trained like this.
        """
        resolved = resolve(experiment)
        network = self.enter_context(open_network(experiment, resolved))
        clusters = discovery.local_clusters(resolved.strategy.process_ids(None))
        if network.why_open and len(clusters) > 1:
            addresses = [address for job in clusters[0].jobs.values() for address in job]
            self.warnings.append(f"warning: {open_ports_warning(addresses, network.why_open)}")
        for cluster in clusters or [Cluster(ProcessId("worker", 0))]:
            self._start(experiment, cluster, network.namespace)

    def _start(self, experiment: Experiment, cluster: Cluster, namespace: Namespace | None) -> None:
        directory = join_run(experiment, str(cluster.process_id))
        self.callback(directory.release)
        member = _Member(WorkerProcess(self._server, namespace), directory, queue.SimpleQueue())
        self._members.append(member)
        self.callback(member.process.discard)
        member.process.assign(directory, experiment, cluster, member.messages)

    def measure(self) -> list[dict[str, Any]]:
        """Let all begin when all are warm; return what each has measured.

        Raises:
            ConfigError: a process finds something wrong with the configuration.
            MeasurementError: a process has failed.
        """
        for member in self._members:
            self._hear(member)
        for member in self._members:
            member.process.request(SAVE)
        return [self._hear(member) for member in self._members]

    def _hear(self, member: _Member) -> dict[str, Any]:
        """Return the next measurement of a process."""
        cause = ""
        while True:
            try:
                received = member.messages.get(timeout=self._limit_secs)
            except queue.Empty:
                raise MeasurementError(
                    f"a process has not been heard of for {self._limit_secs:.0f} s"
                ) from None
            assert received is not None
            process_id, message = received
            match message:
                case messages.Measured(values):
                    return dict(values)
                case messages.Problem(lines):
                    raise ConfigError(*lines)
                case messages.Crash(_, text):
                    cause = text
                case messages.Line() if message.is_warning and message.text not in self.warnings:
                    self.warnings.append(message.text)
                case messages.Exit(code):
                    log = log_of(member.directory, process_id)
                    raise MeasurementError(cause or f"it ended with {code}; its log is {log}")
