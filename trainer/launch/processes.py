"""The processes that this one starts: forked by a fork server if there is one, else fresh.

All are started here: workers, points of a sweep, and modules that answer one question.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.cluster import environment, signals
from trainer.cluster.fork_server import END_SECS, SOCKET, ForkServer, receive
from trainer.cluster.host_memory import resident_bytes
from trainer.cluster.messages import Crash, Exit, Line, Message, Outcome, Output, decode, encode
from trainer.cluster.network_namespace import Namespace
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import CRASHED, DONE, RESTARTABLE, WRONG_INPUT
from trainer.files import making_temporary_files, regular_file, writing
from trainer.runs.process_status import log_of
from trainer.runs.state_memory import StateMemory

if TYPE_CHECKING:
    from trainer.config.schema import Experiment
    from trainer.runs.directory import RunDirectory

_READ_SECS = 5.0  # how long the last output may take to be read
_ANSWER_SECS = 600.0
_MAX_MEMORIES = 200  # Linux sends at most 253 descriptors in one message

Messages: TypeAlias = "queue.SimpleQueue[tuple[ProcessId, Message] | None]"
"""Messages with the process that sent them; None wakes the reader."""


class Child:
    """A process with a socket to this one, in its own session.

    Ctrl-C in the terminal reaches this process alone. A module that does not end by itself when the
    socket closes outlives this process.

    Attributes:
        is_forked: whether a fork server forks it.
        has_lost_server: whether it was killed because its fork server ended.

    Args:
        command: the module and its arguments, in which SOCKET stands for its socket.
        streams: descriptors for its standard output, its standard error, and perhaps its standard
            input.
        scratch: the directory of its temporary files, for the server to remove; empty: none.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: dict[str, str],
        streams: Sequence[int],
        *,
        server: ForkServer | None = None,
        namespace: Namespace | None = None,
        scratch: str = "",
    ) -> None:
        self.has_lost_server = False
        self.socket, theirs = socket.socketpair()
        self._outcome: int | None = None
        self._start_error: OSError | None = None
        self._follower: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_killed = False
        self._fresh: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._pidfd: int | None = None
        self._code: int | None = None
        self._has_ended = threading.Event()
        self._given = [theirs.detach(), *map(os.dup, streams)]
        number = self._given[0]
        words = [str(number) if word == SOCKET else word for word in command]
        # -P: the current directory must not come before this package on the path.
        fresh = [sys.executable, "-P", "-m", *words]
        self._command = namespace.command(fresh) if namespace else fresh
        self._variables = variables
        namespaces = namespace.descriptors() if namespace else []
        self._connection = None
        if server:
            self._connection = server.fork(
                command, variables, scratch, [*self._given[:3], *namespaces]
            )
        self.is_forked = self._connection is not None
        if not self.is_forked:
            self._start_fresh()
        threading.Thread(target=self._wait, daemon=True, name="child").start()

    @property
    def pid(self) -> int:
        """The process's id; 0: it has not begun."""
        return self._fresh.pid if self._fresh else self._pid

    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    def wait(self, secs: float | None = None) -> int | None:
        """Return the exit code when it has ended, or None after `secs`.

        It is negative for the signal that killed it. A process that was killed does not end while
        it waits in the kernel, such as for a file system.
        """
        self._has_ended.wait(secs)
        return self._code

    def send(self, message: Message) -> None:
        """Send a message, unless the process has ended.

        A request to stop or save is no signal: processes report those that they receive.
        """
        self.send_line(encode(message))

    def send_line(self, line: bytes) -> None:
        """Send its assignment, or a message, unless it has ended."""
        with suppress(OSError):  # EPIPE, ECONNRESET, or EBADF after `kill`
            self.socket.sendall(line)

    def signal(self, number: int) -> None:
        """Send a signal, if the process lives; before it has begun, only SIGKILL has an effect."""
        with self._lock:
            self._is_killed = self._is_killed or number == signal.SIGKILL
            if self._fresh:
                self._fresh.send_signal(number)
            elif self._pidfd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)
            elif self._connection and self._is_killed and not self._has_ended.is_set():
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)

    def kill(self, secs: float = END_SECS) -> str:
        """Kill the process; return what has not ended within `secs`, or an empty text."""
        self.signal(signal.SIGKILL)
        has_ended = self.wait(secs) is not None
        if has_ended and self._follower is not None:
            self._follower.join(3 * _READ_SECS)  # it writes the end of a log
        self.socket.close()
        return "" if has_ended else f"process {self.pid}"

    def follow(
        self,
        put: Callable[[Message], None],
        name: str,
        read_output: Callable[[], None] = lambda: None,
        end_output: Callable[[bool], str] = lambda is_read: "",
    ) -> None:
        """Pass on its messages in other threads; the last is `Exit`.

        Args:
            name: what the process is to the user, for a crash if it leaves without a report; empty:
                there is none, its output is in `Exit`.
            read_output: reads what it prints until it ends.
            end_output: called at the end, with whether everything was read; returns what `Exit` is
                to have of its output.
        """

        def read_messages() -> None:
            with suppress(OSError), self.socket.makefile(encoding="utf-8") as lines:
                for line in lines:
                    match decode(line):
                        case Outcome(code):
                            self._outcome = code
                        case message if message:
                            put(message)

        readers = [
            threading.Thread(target=target, daemon=True) for target in (read_messages, read_output)
        ]

        def end() -> None:
            self._has_ended.wait()
            assert self._code is not None
            for reader in readers:
                # A child of the process could hold pipes open; the process itself is dead.
                reader.join(_READ_SECS)
            output = end_output(not any(reader.is_alive() for reader in readers))
            self.socket.close()
            code = self._code if self._outcome is None else self._outcome
            if self._start_error is not None:
                put(Line(f"warning: a process could not be started: {self._start_error}"))
            elif code >= 0 and self._outcome is None:
                if name:
                    text = f"{name} left with exit code {code} in the middle of its work"
                    put(Crash(text, text, name))
                code = CRASHED
            put(Exit(code, output))

        for reader in readers:
            reader.start()
        self._follower = threading.Thread(target=end, daemon=True)
        self._follower.start()

    def _start_fresh(self) -> None:
        try:
            with signals.blocked():  # until it handles them: a scheduler signals all processes
                theirs, output, errors, *text = self._given
                self._fresh = subprocess.Popen(
                    self._command,
                    stdin=text[0] if text else subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    pass_fds=[theirs],
                    start_new_session=True,
                    env=self._variables,
                )
        finally:
            self._close_given()

    def _close_given(self) -> None:
        for descriptor in self._given:
            os.close(descriptor)

    def _wait(self) -> None:
        code = self._wait_for_fork() if self._connection else None
        if self._fresh:
            code = self._fresh.wait()
        self._code = code
        self._has_ended.set()

    def _wait_for_fork(self) -> int | None:
        """Receive what the server reports; return the exit code, or None for a fresh process."""
        assert self._connection is not None
        pid, descriptors = receive(self._connection)
        if pid is None:
            return self._do_without_server()
        with self._lock:
            self._pid = pid
            (self._pidfd,) = descriptors
            if self._is_killed:
                with suppress(ProcessLookupError):  # else its end would go unnoticed
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._close_given()
        code, _ = receive(self._connection)
        if code is None:
            self.has_lost_server = not self._is_killed
            code = -signal.SIGKILL  # by the kernel
        with self._lock:
            os.close(self._pidfd)
            self._pidfd = None
            self._connection.close()
        return int(code)

    def _do_without_server(self) -> int | None:
        assert self._connection is not None
        with self._lock:
            self._connection.close()
            if self._is_killed:
                self._close_given()
                return -signal.SIGKILL
            try:
                self._start_fresh()
            except OSError as error:  # what is short now, such as memory, may be there later
                self._start_error = error
                self._outcome = RESTARTABLE
                return RESTARTABLE
        return None


class WorkerProcess(Child):
    """A process of `trainer.worker.process`.

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
            messages: receives the messages of the worker, the last of which is `Exit`.
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
        """Return whether the process is stopped (SIGSTOP); False where that is unknown."""
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


@dataclass(frozen=True)
class Answer:
    """What a module has answered.

    Attributes:
        value: the last line of its output, which is JSON, or None if there is no output.
    """

    code: int
    value: Any
    errors: str


def ask_module(words: Sequence[str], text: str = "") -> Answer:
    """Run a module that imports TensorFlow, for one answer.

    Raises:
        TimeoutError: it takes more than ten minutes.
    """
    with (
        tempfile.TemporaryFile() as question,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        question.write(text.encode())
        question.seek(0)
        streams = [file.fileno() for file in (output, errors, question)]
        child = Child(words, environment.worker_environment(), streams)
        try:
            code = child.wait(_ANSWER_SECS)
        finally:
            child.kill()
        if code is None:
            raise TimeoutError(f"{words[0]} has not answered in {_ANSWER_SECS:g} s")
        output.seek(0)
        errors.seek(0)
        lines, problems = output.read().decode().splitlines(), errors.read().decode()
    if code not in (DONE, WRONG_INPUT):
        return Answer(code, None, problems)
    if not lines:  # the user's code has called sys.exit
        problem = f"{words[0]} left with exit code {code} without an answer\n"
        return Answer(CRASHED, None, problems + problem)
    return Answer(code, json.loads(lines[-1]), problems)
