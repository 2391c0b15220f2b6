"""The command's side of one process on a node of a Ray cluster."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainer.cluster.messages import Exit, Line, Message, decode
from trainer.cluster.spec import Cluster
from trainer.launch.processes.worker_process import Messages

if TYPE_CHECKING:
    from trainer.config.schema import Experiment
    from trainer.runs.directory import RunDirectory

_ANSWER_SECS = 10.0  # how long a living actor may take to answer
_END_SECS = 60.0  # how long Ray may take to notice the end of an actor


class RayProcess:
    """A process that an actor runs.

    Args:
        actor: the handle of a `RayHost`.
        host: the name of its host.
    """

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
    ) -> None:
        """Send the process its assignment, see `WorkerProcess.assign`."""

        def put(message: Message) -> None:
            messages.put((member.process_id, message))

        run_dir = str(directory.path.absolute())
        started = self._actor.start.remote(run_dir, asdict(experiment), member.to_dict())
        self._follower = threading.Thread(target=self._follow, args=(started, put), daemon=True)
        self._follower.start()

    def leave(self) -> None:
        """Let a process leave that only serves others."""
        self._actor.leave.remote()

    def request(self, number: int) -> None:
        """Forward a stop or save request."""
        self._actor.request.remote(int(number))

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._actor.signal.remote(int(number))

    def is_stopped(self) -> bool:
        """Return whether the process is stopped (SIGSTOP); False if its actor does not answer."""
        return bool(self._call("is_stopped"))

    def discard(self) -> None:
        """Kill the process and its actor, and wait for their ends."""
        import ray

        self._call("discard")
        ray.kill(self._actor)
        if self._follower:
            self._follower.join(_END_SECS)

    def _call(self, method: str) -> Any:
        """Return what a method of the actor returns; None if it is lost."""
        import ray

        with suppress(ray.exceptions.RayError):
            return ray.get(getattr(self._actor, method).remote(), timeout=_ANSWER_SECS)
        return None

    def _follow(self, started: Any, put: Any) -> None:
        """Pass on the messages of the process; the last is `Exit`, also if the actor is lost."""
        import ray

        try:
            ray.get(started)
            while True:
                for line in ray.get(self._actor.receive.remote()):
                    message = decode(line)
                    if message is None:
                        continue
                    put(message)
                    if isinstance(message, Exit):
                        return
        except ray.exceptions.RayTaskError as error:
            put(Line(f"warning: its Ray actor failed: {error.cause}"))
        except ray.exceptions.RayError as error:
            reason = str(error).partition("\n")[0]
            put(Line(f"warning: Ray has lost the actor or its node: {reason}"))
        put(Exit(-signal.SIGKILL))
