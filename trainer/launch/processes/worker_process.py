"""A worker, as its supervisor sees it: its start, its assignment, its log, its end."""

from __future__ import annotations

import json
import os
import queue
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from trainer.cluster import environment
from trainer.cluster.fork_server import END_SECS, SOCKET, ForkServer
from trainer.cluster.host_memory import resident_bytes
from trainer.cluster.messages import Line, Message, Output
from trainer.cluster.network_namespace import Namespace
from trainer.cluster.spec import Cluster, ProcessId
from trainer.files import making_temporary_files, regular_file, writing
from trainer.launch.processes.child import Child
from trainer.runs.process_status import log_of
from trainer.runs.state_memory import StateMemory

if TYPE_CHECKING:
    from trainer.config.schema import Experiment
    from trainer.runs.directory import RunDirectory

_MAX_MEMORIES = 200  # Linux sends at most 253 descriptors in one message

Messages: TypeAlias = "queue.SimpleQueue[tuple[ProcessId, Message] | None]"
"""Messages with the process that sent them; None wakes the reader."""


class WorkerProcess(Child):
    """A process of `trainer.worker.process`.

    Args:
        server: forks the process, or None if it is started afresh, and imports TensorFlow itself.
        namespace: the private network that it is to be in.

    Attributes:
        host: the name of its host, or None if that is the one of the command.
    """

    host: str | None = None

    def __init__(
        self, server: ForkServer | None = None, namespace: Namespace | None = None
    ) -> None:
        read_end, write_end = os.pipe()
        self._output = os.fdopen(read_end, "rb")
        # The standard error until there is a log.
        with making_temporary_files():
            self._early = tempfile.TemporaryFile()  # noqa: SIM115
            # For the files that TensorFlow, or a killed process, leaves behind. A server removes
            # its folder however the command ends.
            self._scratch = tempfile.TemporaryDirectory(
                prefix="steadfast-",
                dir=server.scratch() if server else None,
                ignore_cleanup_errors=True,
            )
        scratch = self._scratch.name
        try:
            super().__init__(
                ["trainer.worker.process", "--socket", SOCKET, "--scratch", scratch],
                environment.worker_environment(scratch),
                [write_end, self._early.fileno()],
                server=server,
                namespace=namespace,
                scratch=scratch,
            )
        finally:
            os.close(write_end)

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
        """Send the worker its assignment.

        Args:
            directory: the run directory, whose lock the worker shares from now on.
            experiment: the effective configuration.
            member: the cluster as the worker sees it.
            messages: receives the messages of the worker, the last of which is `Exit`.
            memories: the memory of each process that has one.
            is_standby: whether another attempt runs until `Begin`, and writes to the directory.
        """
        process_id = member.process_id

        def put(message: Message) -> None:
            messages.put((process_id, message))

        path = log_of(directory.path, process_id)
        log = Log(path, lambda problem: put(Line(f"warning: {problem}")))

        def read_output() -> None:
            """Copy what the user's code prints to the log and to the console."""
            for line in self._output:
                log.write(line)
                put(Output(line.decode(errors="replace").rstrip("\n")))

        def end_output(is_read: bool) -> str:
            self._early.seek(0)
            log.write(self._early.read())
            if is_read:
                log.close()
            self._scratch.cleanup()
            return ""

        seen = _seen_memories(memories or {}, process_id)
        assignment = {
            "run_dir": str(directory.path),
            "experiment": asdict(experiment),
            "cluster": member.to_dict(),
            "memories": list(seen),
            "is_standby": is_standby,
        }
        descriptors = [directory.lock.fileno(), log.fileno()]
        descriptors += [memory.fileno() for memory in seen.values()]
        with suppress(OSError):  # it has died already; its output and its exit code are read below
            socket.send_fds(self.socket, [b"!"], descriptors)
        self.send_line(json.dumps(assignment).encode() + b"\n")
        self.follow(put, str(process_id), read_output, end_output)

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid) if self.pid else 0

    def is_stopped(self) -> bool:
        """Return whether the process is stopped (SIGSTOP); False where the system cannot say."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def kill(self, secs: float = END_SECS) -> str:
        """Kill the process, and remove its temporary files; see `Child.kill`."""
        left = super().kill(secs)
        self._scratch.cleanup()
        return left


def _seen_memories(
    memories: Mapping[ProcessId, StateMemory], process_id: ProcessId
) -> dict[str, StateMemory]:
    """Return the memories that a process can see: its own first, if it has one."""
    if process_id not in memories:
        return {}
    others = [other for other in memories if other != process_id]
    return {str(name): memories[name] for name in [process_id, *others][:_MAX_MEMORIES]}


class Log:
    """The log of a process.

    What cannot be written is left out: no process may wait for its log.

    Args:
        path: the file, which is appended to.
        warn: called once, with the reason, if it cannot be written.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._warned = False
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            self._file = open(path, "ab", buffering=0, opener=regular_file)  # noqa: SIM115

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, content: bytes) -> None:
        """Append, if that is possible."""
        try:
            self._file.write(content)
        except OSError as error:
            if not self._warned:
                self._warn(f"{self._path} could not be written: {error.strerror}")
            self._warned = True

    def close(self) -> None:
        self._file.close()
