"""The parent's side of one worker process: its start, its assignment, its messages, its end."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from trainer.cluster import environment, signals
from trainer.cluster.fork_protocol import SOCKET
from trainer.cluster.host_memory import resident_bytes
from trainer.cluster.messages import Crash, Exit, Line, Message, Outcome, Output, decode
from trainer.cluster.network_namespace import Namespace
from trainer.cluster.spec import Cluster, ProcessId
from trainer.files import making_temporary_files, regular_file, writing
from trainer.launch.processes.fork_server import (
    END_SECS,
    ForkedProcess,
    ForkServer,
    ends_within,
    start_process,
)
from trainer.launch.supervision import exit_codes
from trainer.runs.state_memory import StateMemory

if TYPE_CHECKING:
    from trainer.config.schema import Experiment
    from trainer.runs.directory import RunDirectory

_MAX_MEMORIES = 200  # Linux sends at most 253 descriptors in one message

Messages: TypeAlias = "queue.SimpleQueue[tuple[ProcessId, Message] | None]"
"""Messages with the process that sent them; None wakes the reader."""


class WorkerProcess:
    """A process of `trainer.worker.process`.

    Args:
        server: forks the process; None: it is started afresh, and imports TensorFlow itself.
        namespace: the private network that it is to be in.

    Attributes:
        host: the name of its host; None: that of the command.
    """

    host: str | None = None

    def __init__(
        self, server: ForkServer | None = None, namespace: Namespace | None = None
    ) -> None:
        self._end: threading.Thread | None = None
        self._start_error: OSError | None = None
        self._outcome: int | None = None
        self._name = ""
        self._socket, worker_socket = socket.socketpair()
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
        self.process = self._start(server, namespace, worker_socket, write_end)

    def _start(
        self,
        server: ForkServer | None,
        namespace: Namespace | None,
        worker_socket: socket.socket,
        write_end: int,
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        """Have the server fork the worker, or start it afresh."""
        variables = environment.worker_environment(self._scratch.name)
        worker = worker_socket.fileno()
        # -P: the current directory must not come before this package on the path.
        command = [sys.executable, "-P", "-m", "trainer.worker.process", "--socket", str(worker)]
        command += ["--scratch", self._scratch.name]

        def start_fresh() -> subprocess.Popen[bytes]:
            try:
                with signals.blocked():
                    return subprocess.Popen(
                        namespace.command(command) if namespace else command,
                        stdin=subprocess.DEVNULL,
                        stdout=write_end,
                        stderr=self._early,
                        pass_fds=(worker,),
                        # Ctrl-C in the terminal must reach the parent alone, which forwards it.
                        start_new_session=True,
                        env=variables,
                    )
            except OSError as error:
                self._start_error = error
                raise

        def release() -> None:
            worker_socket.close()
            os.close(write_end)

        descriptors = [worker, write_end, self._early.fileno()]
        descriptors += namespace.descriptors() if namespace else []
        connection = None
        if server:
            forked = [SOCKET if word == str(worker) else word for word in command[3:]]
            connection = server.fork(forked, variables, self._scratch.name, descriptors)
        return start_process(connection, release, start_fresh)

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
            is_standby: whether another attempt runs until `begin`, and writes to the directory.
        """
        self._name = str(member.process_id)

        def put(message: Message) -> None:
            messages.put((member.process_id, message))

        path = log_of(directory, member.process_id)
        log = Log(path, lambda problem: put(Line(f"warning: {problem}")))
        threads = [
            threading.Thread(target=target, args=(log, put), daemon=True)
            for target in (self._read_output, self._read_messages)
        ]
        with suppress(OSError):  # it has died already; its output and its exit code are read below
            seen = _seen_memories(memories or {}, member.process_id)
            descriptors = [directory.lock.fileno(), log.fileno()]
            descriptors += [memory.fileno() for memory in seen.values()]
            socket.send_fds(self._socket, [b"!"], descriptors)
            assignment = {
                "run_dir": str(directory.path),
                "experiment": asdict(experiment),
                "cluster": member.to_dict(),
                "memories": list(seen),
                "is_standby": is_standby,
            }
            self._socket.sendall(json.dumps(assignment).encode() + b"\n")
        for thread in threads:
            thread.start()
        self._end = threading.Thread(target=self._wait, args=(threads, log, put), daemon=True)
        self._end.start()

    def begin(self, processes: Sequence[str]) -> None:
        """Let a worker restore its state, and take part in the run.

        Args:
            processes: whose memory has a snapshot, the newest first.
        """
        with suppress(OSError):
            self._socket.sendall(f"{' '.join(['begin', *processes])}\n".encode())

    def leave(self) -> None:
        """Let a process leave that only serves others."""
        with suppress(OSError):
            self._socket.sendall(b"leave\n")

    def request(self, number: int) -> None:
        """Forward a stop or save request.

        Not as a signal: the worker reports those that it receives, and this is none of them.
        """
        with suppress(OSError):
            self._socket.sendall(f"signal {int(number)}\n".encode())

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None

    def resident_bytes(self) -> int:
        """Return the memory that the process takes."""
        return resident_bytes(self.process.pid) if self.process.pid else 0

    def is_stopped(self) -> bool:
        """Return whether the process is stopped (SIGSTOP); False where the system cannot say."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def discard(self, secs: float = END_SECS) -> str:
        """Kill the process: it has no assignment, or must not go on.

        Returns:
            What has not ended within `secs`; empty if the process has.
        """
        self.process.kill()
        has_ended = ends_within(self.process, secs)
        if has_ended and self._end is not None:
            self._end.join()  # it writes the end of the log, whose directory may be removed next
        self._socket.close()
        self._scratch.cleanup()
        return "" if has_ended else f"process {self.process.pid}"

    def _read_output(self, log: Log, put: Callable[[Message], None]) -> None:
        """Copy what the user's code prints to the log and to the console."""
        for line in self._output:
            log.write(line)
            put(Output(line.decode(errors="replace").rstrip("\n")))

    def _read_messages(self, log: Log, put: Callable[[Message], None]) -> None:
        try:
            with self._socket.makefile(encoding="utf-8") as lines:
                for line in lines:
                    match decode(line):
                        case Outcome(code):
                            self._outcome = code
                        case message if message:
                            put(message)
        except OSError:
            pass  # it was killed before it had read its whole assignment

    def _wait(
        self, threads: list[threading.Thread], log: Log, put: Callable[[Message], None]
    ) -> None:
        code = self.process.wait()
        for thread in threads:
            # A child of the worker's could hold the pipes open; the worker itself is dead.
            thread.join(timeout=5)
        self._early.seek(0)
        log.write(self._early.read())
        if self._start_error is not None:
            self._outcome = code
            put(Line(f"warning: a process could not be started: {self._start_error}"))
        if not any(thread.is_alive() for thread in threads):
            log.close()
        self._scratch.cleanup()
        if code >= 0 and self._outcome is None:
            text = f"{self._name} left with exit code {code} in the middle of its work"
            put(Crash(text, text, self._name))
        put(Exit(exit_codes.reported(code, self._outcome)))


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
        """Return the file descriptor."""
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
        """Close the file."""
        self._file.close()


def log_of(directory: RunDirectory, process_id: ProcessId) -> Path:
    """Return the log of one process of a run."""
    return directory.path / "logs" / f"{process_id}.log"
