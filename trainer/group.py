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
from trainer.crash import Failure
from trainer.exitcodes import CRASHED, DONE, RESTARTABLE
from trainer.markers import committed
from trainer.process import WorkerProcess, log_of
from trainer.rundir import RunDirectory
from trainer.schema import Experiment
from trainer.signals import SAVE, STOP
from trainer.strategies.base import Strategy
from trainer.watchdog import Watch

SWEEP = Task("sweep", 0)
"""Who passes on what a sweep is asked for."""

_LOOK_SECS = 5.0  # between two looks for those who are awaited
_CAUSE_SECS = 3.0  # how long the cause of a lost peer may take to be known
_LEAVE_SECS = 60.0  # how long after the first the last may still be leaving


class Group:
    """The processes of one attempt.

    Attributes:
        failed: the process whose end was the end of the attempt; None while none failed.
        why: words how it ended.

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
        self._look_at = 0.0
        self._present: set[Task] = set()
        self._watch = Watch(experiment.watchdog)
        self._asked: set[Task | None] = set()
        self._stopped_by, self._grace_ends = 0, float("inf")
        self._deadline: float | None = None
        self._code = DONE
        self._told = self._has_left = False
        self._words: dict[Task, tuple[str, str]] = {}  # what each told of its end: in one line, and in full
        self.failed: Task | None = None
        self.why = ""

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
            self._look_for_cause()
            return self._code
        finally:
            self.end()

    def signal(self, number: int, source: Task | None = None) -> None:
        """Takes a signal; also in a handler, hence at any moment. `source`: who passes it on, other than the user."""
        self._messages.put({"kind": "signal", "number": number, "from": source})

    def stopped_by(self) -> int:
        """Gives the signal that requested a stop, also one that nobody has looked at, 0 if none did; after `run`."""
        while not self._messages.empty():
            message = self._messages.get()
            if message["kind"] == "signal" and message["number"] in STOP:
                self._stopped_by = self._stopped_by or message["number"]
        return self._stopped_by

    def failure(self) -> Failure | None:
        """Tells how the attempt failed, after `run`; None: no process did."""
        if self.failed is None:
            return None
        cause, text = self._words.get(self.failed, ("", ""))
        return Failure(str(self.failed), self.why, log_of(self._run, self.failed), cause, text)

    def end(self) -> None:
        """Ends whoever is still there."""
        for task, process in self._living.items():
            process.discard()
            if task != self.failed:
                self._console.ended(task, "ended")
        self._living.clear()
        self._console.refresh()

    def _begin(self, member: Cluster) -> None:
        self._living[member.task] = process = self._start()
        self._words.pop(member.task, None)
        self._watch.begin(member.task)
        self._console.begin(member.task)
        process.assign(self._run, self._experiment, member, self._messages)

    def _next(self) -> None:
        at, act = min(self._alarms(), key=lambda alarm: alarm[0])
        try:
            message = self._messages.get(timeout=None if at == float("inf") else max(0.0, at - time.monotonic()))
        except queue.Empty:
            act()
            return
        if message["kind"] == "inflict":
            self._inflict(message["who"], message["signal"])
            return
        task: Task = message["from"]
        if message["kind"] == "signal":
            self._requested(task, message["number"])
        elif message["kind"] == "exit":
            del self._living[task]
            self._joining.pop(task, None)
            self._present.discard(task)
            self._watch.end(task)
            self._ended(task, int(message["code"]))
        else:
            if message["kind"] in ("phase", "progress"):
                self._watch.heard(task, message)
                self._console.heard(task, message)
            if message["kind"] == "phase":
                self._reached(task, message["phase"])
            self._show(task, message)

    def _inflict(self, who: str, number: int) -> None:
        """Does to a process what a rehearsal asks for."""
        for task, process in self._living.items():
            if str(task) == who:
                process.signal(number)

    def _alarms(self) -> list[tuple[float, Callable[[], None]]]:
        """Gives when something is to be done although nobody says anything, and what."""
        alarms: list[tuple[float, Callable[[], None]]] = [
            (self._grace_ends, self._end_grace),
            (self._console.refresh_at(), self._console.refresh),
        ]
        if self._deadline is not None:
            return [*alarms, (self._deadline, lambda: None)]
        if self._joining:
            alarms.append((self._look_at, self._look))
        if (alarm := self._watch.alarm()) is not None:
            alarms.append((alarm[0], self._end_stall))
        return alarms

    def _reached(self, task: Task, phase: str) -> None:
        self._present.add(task)
        if phase == "join" and self._members[task].jobs:
            if not self._joining:
                self._look_at = time.monotonic() + min(_LOOK_SECS, self._start_timeout_secs)
            self._joining.setdefault(task, time.monotonic())
            self._leave_early()
        else:
            self._joining.pop(task, None)

    def _requested(self, source: Task | None, number: int) -> None:
        """Does what a signal asks for that the parent got, or one of the processes."""
        name = signal.Signals(number).name
        if number == SAVE:
            self._pass_on(number)
        elif source in self._asked:
            self._leave_at_once(f"a second {name}")
        elif self._asked:
            # Whoever stops a machine or a container sends one signal to every process in it.
            self._asked.add(source)
        else:
            self._asked.add(source)
            self._stopped_by = number
            self._console.line(f"{name}{f' to {source}' if source else ''}: saving, then leaving; once more leaves at once.")
            self._grace_ends = time.monotonic() + (self._experiment.preemption.grace_secs or float("inf"))
            self._pass_on(number)
            self._leave_early()

    def _pass_on(self, number: int) -> None:
        """Passes a request on to those who train, who then do it together."""
        for process in [self._living[task] for task in self._trainers()] or self._living.values():
            process.request(number)

    def _trainers(self) -> list[Task]:
        return [task for task in self._living if task.job not in self._servers]

    def _leave_early(self) -> None:
        """Leaves on request while nothing has been trained that could be lost: TensorFlow hears nothing while it waits for the others."""
        trainers = self._trainers()
        is_early = not any(self._watch.has_begun(task) for task in trainers) if trainers else bool(self._joining)
        if self._stopped_by and is_early and self._deadline is None:
            self._code, self._deadline = 128 + self._stopped_by, time.monotonic()

    def _end_grace(self) -> None:
        self._leave_at_once(f"preemption.grace_secs ({self._experiment.preemption.grace_secs:g}) are over")

    def _leave_at_once(self, why: str) -> None:
        self._deadline, self._grace_ends = time.monotonic(), float("inf")
        if not self._has_left:  # else all has been saved
            self._code = CRASHED
            self._console.error(f"{why}: {left_without_saving(self._run)}")

    def _end_stall(self) -> None:
        hung, lines = self._watch.report(self._living, {task: log_of(self._run, task) for task in self._living})
        for line in lines:
            self._console.line(line)
        self._console.ended(hung, "stalled")
        self._words[hung] = lines[0].partition(" makes no progress: ")[2], "\n".join(lines[1:])
        if hung.job in self._replaceable:
            self._living[hung].signal(signal.SIGKILL)
            self._watch.renew()
        else:
            self.failed, self.why, self._code, self._deadline = hung, "made no progress", RESTARTABLE, time.monotonic()

    def _look_for_cause(self) -> None:
        """Names the process that is stopped, if one is, and not the one that lost it."""
        if self._code == RESTARTABLE:
            for task, process in self._living.items():
                if process.is_stopped():
                    self.failed, self.why = task, "was stopped by a signal"

    def _show(self, task: Task, message: dict[str, Any]) -> None:
        final = message["kind"] in ("problem", "crash")
        if message["kind"] == "crash":
            self._words[task] = message["cause"], message["text"]
        concerns = message["kind"] == "line" and (task.job == "evaluator" or message["text"].startswith("warning: "))
        concerns = concerns or message["kind"] == "fault" or (message["kind"] == "evaluated" and task.job == "evaluator")
        # What concerns all is said by all.
        if (final and not self._told) or (not final and (task == self._shown or concerns)):
            self._console.show(message, log_of(self._run, task))
        self._told = self._told or final

    def _ended(self, task: Task, code: int) -> None:
        member = self._members[task]
        self._console.ended(task, *_end(code))
        if code == DONE or code > 128:
            self._leaving(member, code)
        elif (code < 0 or code == RESTARTABLE) and task.job in self._replaceable and self._may_replace():
            self._console.line(f"warning: {task} {how(code)}; starting it again alone")
            self._begin(member)
        elif self.failed is None or (self._code == RESTARTABLE and code != RESTARTABLE):
            if code > 0 and code != RESTARTABLE and not self._told:
                # The user's code has left by itself, which is no way to end a run, whatever code it chose.
                self._told, code = True, CRASHED
                self._words[task] = "left without a word", ""
                self._console.error(f"{task} left without a word; its log is {log_of(self._run, task)}")
            self.failed, self.why, self._code = task, how(code), code
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
        self._look_at = time.monotonic() + min(_LOOK_SECS, self._start_timeout_secs)
        task, since = next(iter(self._joining.items()))
        missing = [f"{other} ({address})" for other, address in self._members[task].others.items() if not self._is_there(other, address)]
        if not missing:
            return
        waited = time.monotonic() - since
        if waited < self._start_timeout_secs:
            self._console.line(f"{task} waits for {', '.join(missing)} to start ({waited:.0f} s)")
            return
        self.failed, self.why = task, f"waited {waited:.0f} s for {', '.join(missing)} to start"
        self._console.error(f"{task} {self.why}; start them, or wait longer with strategy.start_timeout_secs")
        self._code, self._deadline = CRASHED, time.monotonic()

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
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "lost its peers" if code == RESTARTABLE else "failed"


def _end(code: int) -> tuple[str, str]:
    """Words how a process ended, for the console: `Crew.ended`."""
    if code == DONE or code > 128:
        return ("stopped" if code else "done"), ""
    if code == RESTARTABLE:
        return "left", how(code)
    return ("lost", how(code)) if code < 0 else ("failed", "")


def left_without_saving(run: RunDirectory) -> str:
    """Words what a stop comes to that could not save."""
    steps = committed(run.path / "checkpoints")
    return f"left without saving; {f'the newest checkpoint is that of step {steps[-1]}' if steps else 'there is no checkpoint yet'}"
