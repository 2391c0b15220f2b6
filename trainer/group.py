"""The processes of one attempt: started together, heard together, gone together. No TensorFlow."""

from __future__ import annotations

import queue
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from trainer.cluster import Cluster, Task
from trainer.console import Console
from trainer.exitcodes import CRASHED, DONE, RESTARTABLE
from trainer.process import WorkerProcess, log_of
from trainer.rundir import RunDirectory
from trainer.schema import Experiment
from trainer.strategies.base import Strategy

_LOOK_SECS = 5.0  # between two looks for those who are awaited
_CAUSE_SECS = 3.0  # how long the cause of a lost peer may take to be known
_LEAVE_SECS = 60.0  # how long after the first the last may still be leaving


class Group:
    """The processes of one attempt.

    Attributes:
        failed: the process whose end was the end of the attempt; None while none failed.

    Args:
        run: the run directory.
        experiment: the effective configuration.
        strategy: what it says of its processes.
        members: the processes to start, the first one shown to the user.
        console: shows messages to the user.
        start: starts one process that does not know yet what it is to do.
        may_replace: asked before a lost process is started again alone.
    """

    def __init__(
        self,
        run: RunDirectory,
        experiment: Experiment,
        strategy: Strategy,
        members: list[Cluster],
        console: Console,
        start: Callable[[], WorkerProcess],
        may_replace: Callable[[], bool],
    ) -> None:
        self._run, self._experiment, self._console = run, experiment, console
        # Who evaluates is no part of the training: it has nothing to save, and its loss is made up for.
        self._servers, self._replaceable = strategy.servers | {"evaluator"}, strategy.replaceable | {"evaluator"}
        self._start_timeout_secs = strategy.start_timeout_secs
        self._start, self._may_replace = start, may_replace
        self._members = {member.task: member for member in members}
        self._shown = members[0].task
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._living: dict[Task, WorkerProcess] = {}
        self._joining: dict[Task, float] = {}
        self._present: set[Task] = set()
        self._deadline: float | None = None
        self._code = DONE
        self._told = self._has_left = False
        self.failed: Task | None = None

    def run(self) -> int:
        """Runs the processes until all have ended.

        Returns:
            The exit code of the one that decides; negative for a signal that killed it.
        """
        try:
            for member in self._members.values():
                self._begin(member)
            while self._living and (self._deadline is None or time.monotonic() < self._deadline):
                self._next()
            return self._code
        finally:
            self.end()

    def signal(self, number: int) -> None:
        """Passes a signal on: to those who train, who then save together and leave."""
        if self._joining:
            # TensorFlow hears no signal while it waits for the others; nothing has been trained yet that could be lost.
            self._code = 128 + number
            self._deadline = time.monotonic()
        living = list(self._living.items())
        trainers = [process for task, process in living if task.job not in self._servers]
        for process in trainers or [process for _, process in living]:
            process.signal(number)
        self._messages.put({"kind": "signal"})

    def end(self) -> None:
        """Ends whoever is still there."""
        for process in self._living.values():
            process.discard()
        self._living.clear()

    def _begin(self, member: Cluster) -> None:
        self._living[member.task] = process = self._start()
        process.assign(self._run, self._experiment, member, self._messages)

    def _next(self) -> None:
        try:
            look = min(_LOOK_SECS, self._start_timeout_secs) if self._joining else None
            if self._deadline is not None:
                look = max(0.0, self._deadline - time.monotonic())
            message = self._messages.get(timeout=look)
        except queue.Empty:
            self._look()
            return
        if message["kind"] == "signal":
            return
        if message["kind"] == "inflict":
            self._inflict(message["who"], message["signal"])
            return
        task: Task = message["from"]
        if message["kind"] == "exit":
            del self._living[task]
            self._joining.pop(task, None)
            self._present.discard(task)
            self._ended(task, int(message["code"]))
        elif message["kind"] == "stop":
            if len(self._members) > 1:
                self.signal(signal.SIGTERM)
        else:
            if message["kind"] == "phase":
                self._reached(task, message["phase"])
            self._show(task, message)

    def _inflict(self, who: str, number: int) -> None:
        """Does to a process what a rehearsal asks for."""
        for task, process in self._living.items():
            if str(task) == who:
                process.signal(number)

    def _reached(self, task: Task, phase: str) -> None:
        self._present.add(task)
        if phase == "join" and self._members[task].jobs:
            self._joining[task] = time.monotonic()
        else:
            self._joining.pop(task, None)

    def _show(self, task: Task, message: dict[str, Any]) -> None:
        final = message["kind"] in ("problem", "crash")
        concerns = message["kind"] == "line" and (task.job == "evaluator" or message["text"].startswith("warning: "))
        concerns = concerns or message["kind"] == "fault"
        # What concerns all is said by all.
        if (final and not self._told) or (not final and (task == self._shown or concerns)):
            self._console.show(message, log_of(self._run, task))
        self._told = self._told or final

    def _ended(self, task: Task, code: int) -> None:
        member = self._members[task]
        if code == DONE or code > 128:
            self._leaving(member, code)
        elif (code < 0 or code == RESTARTABLE) and task.job in self._replaceable and self._may_replace():
            self._console.line(f"warning: {task} {how(code)}; starting it again alone")
            self._begin(member)
        elif self.failed is None or (self._code == RESTARTABLE and code != RESTARTABLE):
            self.failed, self._code = task, code
            # Who lost a peer often ends before the peer that was the cause; every other end is a cause itself.
            self._deadline = time.monotonic() + (_CAUSE_SECS if code == RESTARTABLE else 0.0)

    def _leaving(self, member: Cluster, code: int) -> None:
        if self.failed is not None:
            return
        if code != DONE:
            self._code = code
        if member.is_chief:
            for task, process in self._living.items():
                # Who evaluates still has the last checkpoint to do, unless the training was stopped.
                if task.job in self._servers and (task.job != "evaluator" or code != DONE):
                    process.leave()
        self._has_left = self._has_left or member.task.job != "evaluator"
        evaluating = self._code == DONE and any(task.job == "evaluator" for task in self._living)
        if self._deadline is None and self._has_left and not evaluating:
            self._deadline = time.monotonic() + _LEAVE_SECS

    def _look(self) -> None:
        """Says who is awaited, and gives up when it takes too long."""
        if not self._joining or self._deadline is not None:
            return
        task, since = next(iter(self._joining.items()))
        missing = [f"{other} ({address})" for other, address in self._members[task].others.items() if not self._is_there(other, address)]
        if not missing:
            return
        waited = time.monotonic() - since
        if waited < self._start_timeout_secs:
            self._console.line(f"{task} waits for {', '.join(missing)} to start ({waited:.0f} s)")
            return
        self._console.error(
            f"{task} waited {waited:.0f} s for {', '.join(missing)} to start; start them, or wait longer with strategy.start_timeout_secs"
        )
        self.failed, self._code, self._deadline = task, CRASHED, time.monotonic()

    def _is_there(self, task: Task, address: str) -> bool:
        if task in self._members:
            return task in self._present
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
        except OSError:
            return False
        return True


def how(code: int) -> str:
    """Words how a process ended."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else "lost its peers"
