"""One worker process, seen from its parent: started early, told later what to do, heard until it ends. No TensorFlow."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import cluster, signals
from trainer.cluster import Cluster, Task
from trainer.files import writing

if TYPE_CHECKING:
    from trainer.rundir import RunDirectory
    from trainer.schema import Experiment


class WorkerProcess:
    """A process of `trainer.worker`.

    It starts by importing TensorFlow, which takes seconds, so it may be started before it is known what it is to do, and be
    discarded if that turns out to be nothing.
    """

    def __init__(self, within: Callable[[list[str]], list[str]] = list) -> None:
        """Starts the process.

        Args:
            within: makes of a command one that runs it somewhere, such as in a network namespace, under the same process id.
        """
        self._end: threading.Thread | None = None
        self._socket, theirs = socket.socketpair()
        self._early = tempfile.TemporaryFile()  # noqa: SIM115 - what is said before there is a log
        # TensorFlow leaves files there, as does whoever is killed.
        self._scratch = tempfile.TemporaryDirectory(prefix="steadfast-", ignore_cleanup_errors=True)
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which passes it on once.
        # -P: the current directory must not come before this package on the path.
        with theirs, signals.held():
            self.process = subprocess.Popen(
                within([sys.executable, "-P", "-m", "trainer.worker", "--socket", str(theirs.fileno()), "--scratch", self._scratch.name]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._early,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=cluster.worker_environment(self._scratch.name),
            )

    def assign(self, run: RunDirectory, experiment: Experiment, member: Cluster, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Tells the worker what to do.

        Args:
            run: the run directory, whose lock the worker shares from now on.
            experiment: the effective configuration.
            member: which process of the run it is.
            messages: receives each message that it sends, and finally {"kind": "exit", "code": ...}, each with "from": its task.
        """
        path = log_of(run, member.task)

        def tell(message: dict[str, Any]) -> None:
            messages.put({**message, "from": member.task})

        log = Log(path, lambda problem: tell({"kind": "line", "text": f"warning: {problem}"}))
        threads = [threading.Thread(target=target, args=(log, tell), daemon=True) for target in (self._pump, self._listen)]
        try:
            socket.send_fds(self._socket, [b"!"], [run.lock, log.fileno()])
            assignment = {"run_dir": str(run.path), "experiment": asdict(experiment), "cluster": member.plain()}
            self._socket.sendall(json.dumps(assignment).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has died already; what it said, and its exit code, are passed on below
        for thread in threads:
            thread.start()
        self._end = threading.Thread(target=self._wait, args=(threads, log, tell), daemon=True)
        self._end.start()

    def leave(self) -> None:
        """Lets a process go that only serves others."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(b"leave\n")

    def request(self, number: int) -> None:
        """Passes on what a signal asks for.

        Not as a signal: whoever stops a machine or a container sends one to every process in it, and then this would be the second.
        """
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(f"signal {int(number)}\n".encode())

    def signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def is_stopped(self) -> bool:
        """Says whether the process is stopped (SIGSTOP); where the system does not tell, it is not."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def discard(self) -> None:
        """Ends the process at once; for one that was never told what to do, or in an emergency."""
        self.process.kill()
        self.process.wait()
        if self._end is not None:
            self._end.join()  # it writes the last lines of the log, whose directory may be about to go
        self._socket.close()
        self._scratch.cleanup()

    def _pump(self, log: Log, tell: Callable[[dict[str, Any]], None]) -> None:
        """What the user's code prints goes to the log and to the console."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            log.write(line)
            tell({"kind": "output", "text": line.decode(errors="replace").rstrip("\n")})

    def _listen(self, log: Log, tell: Callable[[dict[str, Any]], None]) -> None:
        try:
            with self._socket.makefile(encoding="utf-8") as lines:
                for line in lines:
                    if line.endswith("}\n"):
                        tell(json.loads(line))
        except ConnectionResetError:
            pass  # it was killed with part of its instructions unread

    def _wait(self, threads: list[threading.Thread], log: Log, tell: Callable[[dict[str, Any]], None]) -> None:
        code = self.process.wait()
        for thread in threads:
            # A grandchild of the user's could hold the pipes open; the worker itself is dead.
            thread.join(timeout=5)
        self._early.seek(0)
        log.write(self._early.read())
        if not any(thread.is_alive() for thread in threads):
            log.close()
        self._scratch.cleanup()
        tell({"kind": "exit", "code": code})


class Log:
    """A process's log. What cannot be written to it is left out: nobody may wait for it, and the console has it too.

    Args:
        path: the file, which is appended to.
        warn: told once of why it cannot be written.

    Raises:
        StorageError: it cannot even be opened.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path, self._warn, self._warned = path, warn, False
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def fileno(self) -> int:
        """Gives its descriptor."""
        return self._file.fileno()

    def write(self, content: bytes) -> None:
        """Appends, if that is possible."""
        try:
            self._file.write(content)
        except OSError as error:
            if not self._warned:
                self._warn(f"{self._path} could not be written: {error.strerror}")
            self._warned = True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def log_of(run: RunDirectory, task: Task) -> Path:
    """Gives the log of one process of a run."""
    return run.path / "logs" / f"{task}.log"
