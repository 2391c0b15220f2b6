"""Starts the worker process, watches it, passes signals on, starts it again after a failure that is nobody's fault.

Imports no TensorFlow: the parent stays small, a crash or hang of TensorFlow cannot take it along, and a sweep leaks
nothing from one point to the next.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from trainer import cluster, config
from trainer.config import Experiment
from trainer.console import Console
from trainer.exitcodes import CRASHED, DONE, RESTARTABLE, WRONG_INPUT
from trainer.rundir import RunDirectory


class Worker:
    """One worker process, its log, and the messages that it sends.

    Args:
        run: the run directory, whose lock the worker shares.
        experiment: the effective configuration.
        messages: receives each message, and finally {"kind": "exit", "code": ...}.
        number: the worker's number.
    """

    def __init__(self, run: RunDirectory, experiment: Experiment, messages: queue.Queue[dict[str, Any]], number: int = 0) -> None:
        self.log = run.path / "logs" / f"worker-{number}.log"
        self.log.parent.mkdir(exist_ok=True)
        self._messages = messages
        reading, writing = os.pipe()
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches the supervisor alone, which passes it on once.
            # -P: the current directory must not come before this package on the path.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trainer.worker", str(run.path), "--channel", str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=(writing, run.lock),
                start_new_session=True,
                env=cluster.worker_environment(),
            )
        os.close(writing)
        assert self.process.stdin is not None
        # The pipe stays open: its end is how the worker learns that the supervisor is gone, even by SIGKILL.
        self.process.stdin.write(json.dumps(config.plain(experiment)).encode() + b"\n")
        self.process.stdin.flush()
        self._threads = [
            threading.Thread(target=target, args=args, daemon=True) for target, args in ((self._pump, ()), (self._listen, (reading,)))
        ]
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def _pump(self) -> None:
        """What the user's code prints goes to the log and to the console."""
        assert self.process.stdout is not None
        with self.log.open("ab", buffering=0) as log:
            for line in self.process.stdout:
                log.write(line)
                self._messages.put({"kind": "output", "text": line.decode(errors="replace").rstrip("\n")})

    def _listen(self, descriptor: int) -> None:
        with open(descriptor, encoding="utf-8") as pipe:
            for line in pipe:
                if line.endswith("}\n"):
                    self._messages.put(json.loads(line))

    def _wait(self) -> None:
        code = self.process.wait()
        for thread in self._threads:
            # A grandchild of the user's could hold the pipes open; the worker itself is dead.
            thread.join(timeout=5)
        self._messages.put({"kind": "exit", "code": code})


class Supervisor:
    """Runs attempts until one ends for good.

    Args:
        run: the run directory.
        experiment: the effective configuration.
        console: shows messages to the user.
    """

    def __init__(self, run: RunDirectory, experiment: Experiment, console: Console) -> None:
        self._run, self._experiment, self._console = run, experiment, console
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._worker: Worker | None = None
        self._stopped_by = 0

    def supervise(self) -> int:
        """Runs the workers.

        Returns:
            The exit code for the user: 0, 1, 2, 130 or 143.
        """
        restart = self._experiment.restart
        with self._signals():
            for failures in range(restart.max_restarts + 1):
                code = self._attempt()
                if self._stopped_by and code != WRONG_INPUT:
                    return DONE if code == DONE else 128 + self._stopped_by
                if not _is_restartable(code):
                    return code
                self._console.line(f"warning: worker 0 {_how(code)}; its log is {self._log}")
                if failures < restart.max_restarts and not self._wait(restart.backoff_secs * 2**failures):
                    return 128 + self._stopped_by
        self._console.error(f"gave up after {restart.max_restarts} restarts (restart.max_restarts); the log is {self._log}")
        return CRASHED

    @property
    def _log(self) -> Path:
        return self._run.path / "logs" / "worker-0.log"

    def _attempt(self) -> int:
        self._worker = Worker(self._run, self._experiment, self._messages)
        try:
            while True:
                message = self._messages.get()
                if message["kind"] == "exit":
                    return int(message["code"])
                self._console.show(message, self._log)
        finally:
            # Reached with a living worker only when this process is in trouble itself.
            if self._worker.process.poll() is None:
                self._worker.process.kill()

    def _wait(self, secs: float) -> bool:
        """Waits before a restart; returns False if a signal came meanwhile."""
        if self._stopped_by:
            return False
        self._console.line(f"Restarting from the newest checkpoint in {secs:g} s.")
        self._worker = None
        try:
            # Nothing but the signal handler puts a message while no worker runs.
            self._messages.get(timeout=secs)
        except queue.Empty:
            return True
        return False

    @contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._handle) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self._stopped_by
        self._stopped_by = self._stopped_by or number
        if self._worker is None:
            self._messages.put({"kind": "stop"})
        else:
            self._worker.signal(number)
        if first:
            self._console.line(f"{signal.Signals(number).name}: saving, then leaving; once more leaves at once.")


def _is_restartable(code: int) -> bool:
    """A process that was killed, or that lost its peers, is nobody's fault; an error in the user's code is."""
    return code < 0 or code == RESTARTABLE


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else "lost its peers"
