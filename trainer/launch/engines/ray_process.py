"""One process of a run on a node of a Ray cluster: the actor there, and the command's side of it.

The actor knows nothing of attempts and restarts: it starts the same worker as a local run, passes
on requests, and hands back messages. When it is killed, or the command that made it ends, the
worker loses its socket and is ended too.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trainer.cluster import ports
from trainer.cluster.messages import Exit, Line, Message
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config import loading
from trainer.config.schema import Experiment
from trainer.files import Lock
from trainer.launch.processes.worker_process import Messages, WorkerProcess
from trainer.runs.directory import RunDirectory, lock_file
from trainer.runs.state_memory import StateMemory

_POLL_SECS = 5.0  # how long a call may wait for a message
_LOCK_SECS = 30.0  # how long the process of a killed command may need to end
_ANSWER_SECS = 10.0  # how long a living actor may take to answer


@dataclass(frozen=True)
class Place:
    """Where an actor runs.

    Attributes:
        address: host:port for the process, free at this moment; an IPv6 host in brackets.
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
        """Start the process, or raise a LockedError if that of an earlier command lives."""
        path = Path(run_dir)
        cluster = Cluster.from_dict(member)
        # The command holds the lock of the run; on its death the process of this node has to end
        # before the next command starts its own.
        lock = Lock.acquire(path / f".{cluster.process_id}.lock", _LOCK_SECS)
        directory = RunDirectory(path, run_dir, is_new=False, lock=lock, created=[], old_run=None)
        self._process = WorkerProcess()
        self._process.assign(directory, loading.restore(experiment), cluster, self._messages)
        lock.close()

    def receive(self) -> list[Message]:
        """Return the messages since the last call; wait a while for one."""
        received: list[tuple[ProcessId, Message] | None] = []
        with suppress(queue.Empty):
            received.append(self._messages.get(timeout=_POLL_SECS))
            while True:
                received.append(self._messages.get_nowait())
        return [item[1] for item in received if item]

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the `WorkerProcess`, if it was started; return what that returns."""
        return getattr(self._process, method)(*arguments) if self._process else None


def _own_ip() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


class RayProcess:
    """A process that an actor, the handle of a `RayHost`, runs."""

    def __init__(self, actor: Any, host: str | None) -> None:
        self.host = host
        self._actor = actor
        self._follower: threading.Thread | None = None

    def assign(
        self,
        directory: RunDirectory,
        experiment: Experiment,
        member: Cluster,
        messages: Messages,
        memories: Mapping[ProcessId, StateMemory] | None = None,
        *,
        is_standby: bool = False,
    ) -> None:
        """Send the process its assignment, see `WorkerProcess.assign`; it has no memory."""

        def put(message: Message) -> None:
            messages.put((member.process_id, message))

        run_dir = str(directory.path.absolute())
        started = self._actor.start.remote(run_dir, asdict(experiment), member.to_dict())
        self._follower = threading.Thread(target=self._follow, args=(started, put), daemon=True)
        self._follower.start()

    def send(self, message: Message) -> None:
        self._actor.call.remote("send", message)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._actor.call.remote("signal", int(number))

    def has_ended(self) -> bool:
        return self._follower is not None and not self._follower.is_alive()

    def resident_bytes(self) -> int:
        """Return 0: the process is on another host."""
        return 0

    def is_stopped(self) -> bool:
        """Return whether the process is stopped (SIGSTOP); False if its actor does not answer."""
        return bool(self._answer("is_stopped"))

    def kill(self, secs: float = _ANSWER_SECS) -> str:
        """Kill the process and its actor, see `Child.kill`."""
        import ray

        left = self._answer("kill", min(secs, _ANSWER_SECS) / 2, secs=max(1.0, secs))
        ray.kill(self._actor)
        if self._follower:
            self._follower.join(secs)
        return f"{left} on {self.host}" if left else ""

    def _answer(self, method: str, *arguments: float, secs: float = _ANSWER_SECS) -> Any:
        """Return what a method of the process returns; None if its actor is lost."""
        import ray

        with suppress(ray.exceptions.RayError):
            return ray.get(self._actor.call.remote(method, *arguments), timeout=secs)
        return None

    def _follow(self, started: Any, put: Any) -> None:
        """Pass on the messages of the process; the last is `Exit`, also if the actor is lost."""
        import ray

        try:
            ray.get(started)
            while True:
                for message in ray.get(self._actor.receive.remote()):
                    put(message)
                    if isinstance(message, Exit):
                        return
        except ray.exceptions.RayTaskError as error:
            put(Line(f"warning: its Ray actor failed: {error.cause}"))
        except ray.exceptions.RayError as error:
            reason = str(error).partition("\n")[0]
            put(Line(f"warning: Ray has lost the actor or its node: {reason}"))
        put(Exit(-signal.SIGKILL))


ManagedProcess: TypeAlias = WorkerProcess | RayProcess
"""One process of a run: on this machine, or on a node of a Ray cluster."""
