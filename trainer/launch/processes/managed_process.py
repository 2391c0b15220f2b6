"""What the supervisor needs of a process of a run, wherever it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trainer.cluster.spec import Cluster
    from trainer.config.schema import Experiment
    from trainer.launch.processes.worker_process import Messages
    from trainer.runs.directory import RunDirectory


class ManagedProcess(Protocol):
    """One process of an attempt: on this machine, or on a node of a Ray cluster.

    Attributes:
        host: the name of its host; None: that of the command.
    """

    host: str | None

    def assign(
        self, directory: RunDirectory, experiment: Experiment, member: Cluster, messages: Messages
    ) -> None:
        """Send the process its assignment; its messages end with `Exit`."""

    def leave(self) -> None:
        """Let a process leave that only serves others."""

    def request(self, number: int) -> None:
        """Forward a stop or save request."""

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""

    def is_stopped(self) -> bool:
        """Return whether the process is stopped (SIGSTOP)."""

    def discard(self) -> None:
        """Kill the process, and wait for its end."""
