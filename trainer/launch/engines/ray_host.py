"""The actor that runs one process of a run on a node of a Ray cluster.

It knows nothing of attempts and restarts: it starts the same worker as a local run, passes on
requests, and hands back messages. When the actor is killed, or the command that made it ends, the
worker loses its socket and is ended too.
"""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cluster import messages, ports
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config import loading
from trainer.files import Lock
from trainer.launch.processes.worker_process import Messages, WorkerProcess
from trainer.runs.directory import RunDirectory, lock_file

_POLL_SECS = 5.0  # how long a call may wait for a message
_LOCK_SECS = 30.0  # how long the process of a killed command may need to end


@dataclass(frozen=True)
class Place:
    """Where an actor runs.

    Attributes:
        address: host:port for the process, free at this moment; an IPv6 host in brackets.
        host: the host's name.
        sees_run: whether it sees the files of the run.
    """

    address: str
    host: str
    sees_run: bool = True

    @property
    def node(self) -> str:
        """The address of its node."""
        return self.address.rpartition(":")[0]


class RayHost:
    """Runs one process."""

    def __init__(self) -> None:
        self._messages: Messages = queue.SimpleQueue()
        self._process: WorkerProcess | None = None

    def find_place(self, working_dir: str, run_dir: str, holder: str) -> Place:
        """Return where the process will be, after checking that it sees the files of the run.

        Args:
            working_dir: the directory of the command, in which relative paths are resolved.
            run_dir: the run directory.
            holder: what the lock of the run directory holds, as the command sees it.
        """
        node_ip = _own_ip()
        host = f"[{node_ip}]" if ":" in node_ip else node_ip
        try:
            os.chdir(working_dir)
            sees_run = lock_file(Path(run_dir)).read_text() == holder
        except OSError:
            sees_run = False
        return Place(f"{host}:{ports.free_port()}", socket.gethostname(), sees_run)

    def start(self, run_dir: str, experiment: Mapping[str, Any], member: Mapping[str, Any]) -> None:
        """Start the process; its messages come from `receive`.

        Raises:
            LockedError: this process of an earlier command is still alive.
        """
        path = Path(run_dir)
        cluster = Cluster.from_dict(member)
        # The command holds the lock of the run; on its death the process of this node has to end
        # before the next command starts its own.
        lock = Lock.acquire(path / f".{cluster.process_id}.lock", _LOCK_SECS)
        directory = RunDirectory(path, run_dir, is_new=False, lock=lock, created=[], old_run=None)
        self._process = WorkerProcess()
        self._process.assign(directory, loading.restore(experiment), cluster, self._messages)
        lock.close()

    def receive(self) -> list[str]:
        """Return the messages since the last call, one JSON object each; wait a while for one."""
        received: list[tuple[ProcessId, messages.Message] | None] = []
        try:
            received.append(self._messages.get(timeout=_POLL_SECS))
            while True:
                received.append(self._messages.get_nowait())
        except queue.Empty:
            return [messages.encode(item[1]).decode() for item in received if item]

    def request(self, number: int) -> None:
        """Forward a stop or save request to the process."""
        if self._process:
            self._process.request(number)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self._process:
            self._process.signal(number)

    def leave(self) -> None:
        """Let the process leave."""
        if self._process:
            self._process.leave()

    def is_stopped(self) -> bool:
        """Return whether the process is stopped (SIGSTOP)."""
        return self._process is not None and self._process.is_stopped()

    def discard(self) -> None:
        """Kill the process, and wait for its end."""
        if self._process:
            self._process.discard()


def _own_ip() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
