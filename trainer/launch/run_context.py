"""What the parts of the parent's side of a run share: its one context object."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.cluster.spec import Cluster
from trainer.cluster.stop_requests import StopRequests
from trainer.config.schema import Experiment
from trainer.launch.display.console import Console
from trainer.launch.resolved_run import Network
from trainer.runs.directory import RunDirectory
from trainer.strategies.strategy import Strategy


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
