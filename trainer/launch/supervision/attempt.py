"""One attempt: the processes that are started together, and end together.

Everything that happens to them arrives in one queue, in the order in which it happened: messages of
the processes, their ends, and requests of the user. `Attempt` takes one at a time, and wakes up for
what is due by the clock: a process that hangs, a join or a stop that takes too long, the standby.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainer.cluster import discovery, messages
from trainer.cluster.environment import visible_gpus
from trainer.cluster.host_memory import available_bytes
from trainer.cluster.messages import Message, Phase
from trainer.cluster.ports import is_listening
from trainer.cluster.spec import BESIDE, Cluster, ProcessId
from trainer.cluster.stop_requests import Decision
from trainer.errors import CRASHED, DONE, RESTARTABLE, WRONG_INPUT
from trainer.launch.engines.ray_process import ManagedProcess
from trainer.launch.processes.fork_server import END_SECS
from trainer.launch.processes.worker_process import Messages, log_of
from trainer.launch.run_context import RunContext, no_standby
from trainer.launch.supervision import exit_codes
from trainer.launch.supervision.memories import Memories
from trainer.launch.supervision.watchdog import Watch
from trainer.strategies.strategy import Strategy

_CHECK_SECS = 5.0  # between two looks at who is missing at the start
_CAUSE_SECS = 3.0  # how long the cause of a lost peer may take to be known
_LEAVE_SECS = 60.0  # how long after the first process the last may still be leaving
_FIRST_SECS = 30.0
"""How long the first attempt trains before it gets a standby: a shorter run does without."""
_LATER_SECS = 2.0
"""How long a later one does: what has failed once is expected to fail again."""
_SHARE_OF_MEMORY = 0.5
"""The share of the free memory that `restart.standby=auto` takes."""


class Failure(NamedTuple):
    """The failure of an attempt: of the process that failed first, not of those that lost it.

    Attributes:
        process: the name of the process, such as `worker-1`.
        end: how it ended, such as `was killed by SIGKILL`.
        log: its log.
    """

    process: str
    end: str
    log: Path


class Attempt:
    """The processes of one attempt.

    Args:
        context: the command's run.
        members: the processes to start; the messages of the first are shown to the user.
        start: starts one process that has no assignment yet.
        may_replace: called before a lost process is restarted alone.
        memories: the memory of each process.
        standby: the attempt that is to follow.

    Attributes:
        members: the processes.
        has_begun: whether a process has joined the others, so that it may have trained.
    """

    def __init__(
        self,
        context: RunContext,
        members: list[Cluster],
        start: Callable[[ProcessId], ManagedProcess],
        may_replace: Callable[[ProcessId], bool],
        memories: Memories,
        standby: Standby,
    ) -> None:
        self.members = members
        self.has_begun = False
        self._experiment = context.experiment
        self._directory = context.directory
        self._console = context.console
        self._stop_requests = context.stop_requests
        self._members = {member.process_id: member for member in members}
        self._has_shown_error = False
        self._messages: Messages = queue.SimpleQueue()
        self._living = ProcessSet(context.strategy, start)
        self._join_wait = JoinWait(self._members, context.strategy.start_timeout_secs)
        self._watch = Watch(context.experiment.watchdog)
        self._blamed: ProcessId | None = None
        self._how = ""  # it ended
        self._reports: dict[ProcessId, tuple[str, str]] = {}
        """What processes have reported of their ends, in one line and in full."""
        self._may_replace = may_replace
        self._memories = memories
        self._standby = standby
        self._grace_ends = float("inf")
        self._deadline: float | None = None
        self._code = DONE
        self._has_left = False

    def prepare(self) -> None:
        """Start the processes that train, ahead of `run`, while another attempt runs.

        Raises:
            OSError: one could not be started.
        """
        for member in self.members:
            if not member.process_id.is_beside:
                self._start(member, is_standby=True)

    def is_usable(self, process_ids: Sequence[ProcessId]) -> bool:
        """Return whether these are its processes, and all that `prepare` has started live."""
        has_lost_one = any(process.has_ended() for process in self._living.values())
        return list(self._members) == list(process_ids) and not has_lost_one

    def resident_bytes(self) -> int:
        """Return the memory that the processes take."""
        return sum(process.resident_bytes() for process in self._living.values())

    def run(self) -> int:
        """Run the processes until all have ended.

        Returns:
            The exit code of the process that decides; negative for the signal that killed it.
        """
        try:
            prepared = list(self._living)
            for process_id in prepared:
                self._begin(self._members[process_id])
            for member in self.members:
                # Starting hundreds takes minutes, in which a stop request must be answered.
                while self._deadline is None and not self._messages.empty():
                    self._next()
                if self._deadline is not None:
                    break
                if member.process_id not in prepared:
                    self._begin(member)
            while self._living and (self._deadline is None or time.monotonic() < self._deadline):
                self._next()
            self._blame_stopped_process()
            return self._code
        finally:
            self._end()

    def wake(self) -> None:
        """Look at the stop requests; called in signal handlers, hence at any moment."""
        self._messages.put(None)

    def stopped_by(self) -> int:
        """Return the signal that requested a stop, also one not handled; 0: none. After `run`."""
        while not self._messages.empty():
            match self._messages.get():
                case process_id, messages.SignalReceived(number):
                    self._stop_requests.decide(number, process_id)
        return self._stop_requests.drain()

    def failure(self) -> Failure | None:
        """Return how the attempt failed; None: no process did. Call it after `run`."""
        if self._blamed is None:
            return None
        return Failure(str(self._blamed), self._how, log_of(self._directory, self._blamed))

    def discard(self) -> None:
        """Kill the processes that are left."""
        for process in self._living.values():
            process.signal(signal.SIGKILL)  # all of them before the first is waited for
        ends = time.monotonic() + END_SECS
        for process_id, process in self._living.items():
            if left := process.discard(max(0.0, ends - time.monotonic())):
                self._console.line(f"warning: {process_id} ({left}) was killed but does not end")
        self._living.clear()

    def _start(self, member: Cluster, *, is_standby: bool = False) -> ManagedProcess:
        """Start a process, perhaps again."""
        process = self._living.start(member.process_id)
        self._memories.add(member.process_id)
        arguments = (self._directory, self._experiment, member, self._messages)
        process.assign(*arguments, self._memories, is_standby=is_standby)
        return process

    def _begin(self, member: Cluster) -> None:
        """Have a process take part, which is started unless it has been."""
        process_id = member.process_id
        process = self._living.get(process_id) or self._start(member)
        self._reports.pop(process_id, None)
        self._watch.begin(process_id)
        self._console.begin(process_id, process.host)
        process.begin(self._memories.newest())

    def _end(self) -> None:
        """End the processes that are left."""
        for process_id in self._living:
            if process_id != self._blamed:
                self._console.end(process_id, "ended")
        self.discard()

    def _next(self) -> None:
        """Handle the next message, request or alarm."""
        at, act = min(self._alarms(), key=lambda alarm: alarm[0])
        timeout = None if at == float("inf") else max(0.0, at - time.monotonic())
        try:
            received = self._messages.get(timeout=timeout)
        except queue.Empty:
            act()
            return
        if received is not None:
            self._handle_message(*received)
        elif request := self._stop_requests.take():
            self._handle_request(*request)

    def _alarms(self) -> list[tuple[float, Callable[[], None]]]:
        """Return what to do if no message comes, each with its time."""
        alarms: list[tuple[float, Callable[[], None]]] = [
            (self._grace_ends, self._end_grace),
        ]
        if self._deadline is not None:
            return [*alarms, (self._deadline, lambda: None)]
        alarms.append((self._join_wait.check_at, self._check_join))
        alarms.append((self._standby.due_at, lambda: self._standby.start(self)))
        return [*alarms, (self._watch.alarm(), self._end_stall)]

    def _handle_message(self, process_id: ProcessId, message: Message) -> None:
        match message:
            case messages.SignalRequest(name, number):
                self._living.send_signal(name, number)
            case messages.SignalReceived(number):
                self._handle_request(number, process_id)
            case messages.Exit(code):
                del self._living[process_id]
                self._join_wait.end(process_id)
                self._watch.end(process_id)
                self._handle_exit(process_id, code)
                if self._blamed and all(x.is_beside for x in self._living):
                    self._deadline = time.monotonic()  # nobody is left who can tell the cause
            case messages.Phase() | messages.Progress():
                self._watch.update(process_id, message)
                self.has_begun = self.has_begun or self._watch.has_begun(process_id)
                self._console.update(process_id, message)
                phase = message.phase if isinstance(message, Phase) else None
                if phase and self._join_wait.enter_phase(process_id, phase):
                    self._leave_early()
                if phase == "train":
                    self._standby.expect()
                self._show(process_id, message)
            case _:
                self._show(process_id, message)

    def _show(self, process_id: ProcessId, message: Message) -> None:
        if isinstance(message, messages.Crash):
            self._reports[process_id] = message.cause, message.text
        if self._is_shown(process_id, message):
            self._console.show(message, log_of(self._directory, process_id))

    def _is_shown(self, process_id: ProcessId, message: Message) -> bool:
        """Return whether the user sees a message: of the first process, or of the whole run."""
        is_evaluator = process_id.is_evaluator
        match message:
            case messages.Crash() if process_id.is_actor:
                return False  # it is replaced
            case messages.Problem() | messages.Crash():
                is_first_error = not self._has_shown_error
                self._has_shown_error = True
                return is_first_error
            case messages.FaultNotice():
                return True
            case messages.Line() | messages.Opening() | messages.Evaluated() if is_evaluator:
                return True
            case messages.Line() if message.is_warning:
                return True
        return process_id == self.members[0].process_id

    def _handle_request(self, number: int, source: ProcessId | None) -> None:
        """Act on a stop or save signal that this process has received, or one of the run's."""
        name = signal.Signals(number).name
        match self._stop_requests.decide(number, source):
            case Decision.SAVE:
                self._living.forward(number)
            case Decision.LEAVE:
                self._leave_at_once("a second SIGINT")
            case Decision.STOP:
                receiver = f" to {source}" if source else ""
                hint = self._stop_requests.hint()
                self._console.line(f"{name}{receiver}: saving, then leaving{hint}.")
                grace_secs = self._experiment.preemption.grace_secs or float("inf")
                self._grace_ends = time.monotonic() + grace_secs
                self._living.forward(number)
                self._standby.close()
                self._leave_early()

    def _leave_early(self) -> None:
        """Stop now if requested before any process has trained: joining ignores requests."""
        trainers = self._living.trainers()
        is_joining = not any(map(self._watch.has_begun, trainers))
        is_early = is_joining if trainers else self._join_wait.is_waiting
        if self._stop_requests.number and is_early and self._deadline is None:
            self._code = 128 + self._stop_requests.number
            self._deadline = time.monotonic()

    def _end_grace(self) -> None:
        grace_secs = self._experiment.preemption.grace_secs
        self._leave_at_once(f"preemption.grace_secs ({grace_secs:g}) are over")

    def _leave_at_once(self, reason: str) -> None:
        self._deadline = time.monotonic()
        self._grace_ends = float("inf")
        if not self._has_left:  # otherwise everything has been saved
            self._code = CRASHED
            lost = exit_codes.left_without_saving(self._directory.path)
            self._console.error(f"{reason}: {lost}")

    def _end_stall(self) -> None:
        """Report the process that hangs; restart it alone, or end the attempt."""
        logs = {process_id: log_of(self._directory, process_id) for process_id in self._living}
        hung, lines = self._watch.report(self._living, logs)
        for line in lines:
            self._console.line(line)
        self._console.end(hung, "stalled")
        if self._living.is_restartable(hung):
            self._living[hung].signal(signal.SIGKILL)
            self._watch.renew()
        else:
            self._fail(hung, "made no progress", RESTARTABLE)

    def _blame_stopped_process(self) -> None:
        """Blame a process that is stopped (SIGSTOP), if there is one, and not one that lost it."""
        if self._code == RESTARTABLE:
            for process_id, process in self._living.items():
                if process.is_stopped():
                    self._blamed, self._how = process_id, "was stopped by a signal"

    def _handle_exit(self, process_id: ProcessId, code: int) -> None:
        member = self._members[process_id]
        how = exit_codes.describe(code)
        # An actor that has crashed is replaced too: it is its environment that has failed.
        is_lost_actor = process_id.is_actor and code != WRONG_INPUT
        is_lost = exit_codes.is_restartable(code) or is_lost_actor
        self._console.end(process_id, *exit_codes.console_state(code))
        if exit_codes.is_success(code):
            self._let_others_leave(member, code)
        elif process_id.is_actor and self._deadline is not None:
            return  # the others are leaving
        elif is_lost and self._living.is_restartable(process_id) and self._may_replace(process_id):
            _, text = self._reports.get(process_id, ("", ""))
            for line in text.splitlines() if process_id.is_actor else ():
                self._console.line(f"{process_id}: {line}")
            self._console.line(f"warning: {process_id} {how}; starting it again alone")
            try:
                self._begin(member)
            except OSError as error:  # no memory or descriptors, perhaps for a while
                self._fail(process_id, f"could not be started again: {error}", RESTARTABLE)
        elif self._blamed is None and is_lost_actor:
            self._give_up_actor(process_id, how)
        elif self._blamed is None or (
            self._code == RESTARTABLE and code != RESTARTABLE and process_id != self._blamed
        ):
            # A process that lost a peer often ends before that peer: any other end is a cause.
            self._fail(process_id, how, code, _CAUSE_SECS if code == RESTARTABLE else 0.0)

    def _give_up_actor(self, process_id: ProcessId, how: str) -> None:
        """End the run because of an actor that was lost too often, and tell how it was."""
        log = log_of(self._directory, process_id)
        cause, text = self._reports.get(process_id, ("", ""))
        if text:
            self._console.show(messages.Crash(text, cause, str(process_id)), log)
        self._console.error(
            f"gave up after {self._experiment.actors.max_restarts} lost actors since the "
            f"newest checkpoint (actors.max_restarts): {process_id} {how}; its log is {log}"
        )
        self._fail(process_id, how, CRASHED)

    def _fail(self, process_id: ProcessId, how: str, code: int, secs: float = 0.0) -> None:
        """End the attempt within `secs` because of a process."""
        self._blamed, self._how = process_id, how
        self._code = code
        self._deadline = time.monotonic() + secs

    def _let_others_leave(self, member: Cluster, code: int) -> None:
        """Let the others leave after a process that was done or has stopped."""
        if self._blamed is not None:
            return
        if code != DONE:
            self._code = code
        if member.is_chief:
            self._living.dismiss(is_stop=code != DONE)
        self._has_left = self._has_left or not member.process_id.is_beside
        has_evaluator = any(process_id.is_evaluator for process_id in self._living)
        is_evaluating = self._code == DONE and has_evaluator
        if self._deadline is None and self._has_left and not is_evaluating:
            self._deadline = time.monotonic() + _LEAVE_SECS

    def _check_join(self) -> None:
        """Tell the user who is missing at the start; give up when it takes too long."""
        awaited = self._join_wait.check()
        if awaited is None:
            return
        process_id, missing, secs, is_over = awaited
        if not is_over:
            self._console.line(f"{process_id} waits for {missing} to start ({secs:.0f} s)")
            return
        how = f"waited {secs:.0f} s for {missing} to start"
        self._console.error(
            f"{process_id} {how}; start them, or wait longer with strategy.start_timeout_secs"
        )
        self._fail(process_id, how, CRASHED)


class ProcessSet(dict[ProcessId, ManagedProcess]):
    """The living processes by their id.

    Args:
        strategy: names the jobs that serve, and those that may be restarted alone.
        start: starts one process that has no assignment yet.
    """

    def __init__(self, strategy: Strategy, start: Callable[[ProcessId], ManagedProcess]) -> None:
        super().__init__()
        # These have nothing to save.
        self._service_jobs = strategy.service_jobs | BESIDE
        self._restartable_jobs = strategy.restartable_jobs | BESIDE
        self._start = start

    def start(self, process_id: ProcessId) -> ManagedProcess:
        """Start a process, perhaps again."""
        self[process_id] = process = self._start(process_id)
        return process

    def is_restartable(self, process_id: ProcessId) -> bool:
        """Return whether a process may be restarted alone."""
        return process_id.job in self._restartable_jobs

    def trainers(self) -> list[ProcessId]:
        """Return the processes that run steps."""
        return [process_id for process_id in self if process_id.job not in self._service_jobs]

    def forward(self, number: int) -> None:
        """Forward a request to the processes that train, or to all if none does."""
        trainers = [self[process_id] for process_id in self.trainers()]
        for process in trainers or self.values():
            process.request(number)

    def send_signal(self, name: str, number: int) -> None:
        """Send a signal to the process of this name, if it lives, or to this one."""
        if name == "supervisor":
            os.kill(os.getpid(), number)
        for process_id, process in self.items():
            if str(process_id) == name:
                process.signal(number)

    def dismiss(self, *, is_stop: bool) -> None:
        """Let the processes leave that only serve.

        Args:
            is_stop: whether the training was stopped; if it is done, an evaluator still has the
                last checkpoint to evaluate.
        """
        for process_id, process in self.items():
            if process_id.job in self._service_jobs and (is_stop or not process_id.is_evaluator):
                process.leave()


class Awaited(NamedTuple):
    """A process that waits for others, which are missing, with their addresses; and how long."""

    process_id: ProcessId
    missing: str
    secs: float
    is_over: bool


class JoinWait:
    """Who waits for whom, in one attempt.

    Attributes:
        check_at: when to call `check`, by the clock; infinity while no process waits.

    Args:
        members: the processes that are started here.
        timeout_secs: how long a process may wait.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        members: Mapping[ProcessId, Cluster],
        timeout_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.check_at = float("inf")
        self._members = members
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._since: dict[ProcessId, float] = {}
        self._present: set[ProcessId] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether any process waits."""
        return bool(self._since)

    def enter_phase(self, process_id: ProcessId, phase: str) -> bool:
        """Take the phase of a process; return whether the process waits for others in it."""
        self._present.add(process_id)
        if phase != "join" or not self._members[process_id].jobs:
            self._leave(process_id)
            return False
        is_first = not self._since
        self._since.setdefault(process_id, self._clock())
        if is_first:
            self._schedule()
        return True

    def end(self, process_id: ProcessId) -> None:
        """Remove a process that has ended."""
        self._leave(process_id)
        self._present.discard(process_id)

    def check(self) -> Awaited | None:
        """Return the process that has waited longest; None: all that it needs are there."""
        self._schedule()
        process_id, since = next(iter(self._since.items()))
        missing = [
            f"{other} ({address})"
            for other, address in self._members[process_id].others.items()
            if not self._is_there(other, address)
        ]
        if not missing:
            return None
        secs = self._clock() - since
        return Awaited(process_id, ", ".join(missing), secs, is_over=secs >= self._timeout_secs)

    def _leave(self, process_id: ProcessId) -> None:
        self._since.pop(process_id, None)
        if not self._since:
            self.check_at = float("inf")

    def _schedule(self) -> None:
        now = self._clock()
        deadline = min(self._since.values()) + self._timeout_secs
        self.check_at = now + _CHECK_SECS
        if now < deadline:
            self.check_at = min(self.check_at, deadline)

    def _is_there(self, process_id: ProcessId, address: str) -> bool:
        if process_id in self._members:
            return process_id in self._present
        return is_listening(address)


def is_possible(context: RunContext) -> bool:
    """Return whether a run can have a standby at all.

    Its processes are started here, and could not share an accelerator with those that train. A loop
    of the user's own, and actors, may do anything before they restore.
    """
    experiment, strategy = context.experiment, context.strategy
    return (
        experiment.mode == "train"
        and no_standby(experiment, strategy) is None
        and not context.cluster.is_declared
        and not (strategy.uses_gpus and visible_gpus())
    )


class Standby:
    """The next attempt of a run, started ahead while the present one trains, if it is there.

    Its processes connect, build and compile, and wait where a restart begins to differ: before they
    restore. They write nothing into the run directory until then.

    Attributes:
        due_at: when to call `start`, by the clock; infinity: not now.

    Args:
        policy: auto, always or never, as in `restart.standby`.
        create: returns an attempt with these processes.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        policy: str,
        create: Callable[[list[Cluster]], Attempt],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.due_at = float("inf")
        self._policy = policy
        self._create = create
        self._clock = clock
        self._delay_secs = 0.0 if policy == "always" else _FIRST_SECS
        self._is_wanted = policy != "never"
        self._attempt: Attempt | None = None

    def expect(self) -> None:
        """Have one started after a while, once for each attempt: the present one trains."""
        if self._is_wanted:
            self._is_wanted = False
            self.due_at = self._clock() + self._delay_secs

    def start(self, present: Attempt) -> None:
        """Start it beside the present attempt, with as many processes, if the memory allows."""
        self.due_at = float("inf")
        free = available_bytes()
        needed = present.resident_bytes()
        if self._policy == "auto" and free is not None and needed > _SHARE_OF_MEMORY * free:
            return
        attempt = self._create(_members_like(present.members))
        try:
            attempt.prepare()
        except OSError:  # no process, descriptor or log can be had: a restart goes without
            attempt.discard()
        else:
            self._attempt = attempt

    def take(self, process_ids: Sequence[ProcessId]) -> Attempt | None:
        """Return it for the next attempt; None: it is not there, or has other processes."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None and not attempt.is_usable(process_ids):
            attempt.discard()
            attempt = None
        return attempt

    def renew(self) -> None:
        """Have another one started when the next attempt trains: an attempt has failed."""
        self.due_at = float("inf")
        self._is_wanted = self._policy != "never"
        self._delay_secs = min(self._delay_secs, _LATER_SECS)

    def close(self) -> None:
        """End it for good."""
        self._policy = "never"
        self._is_wanted = False
        self.due_at = float("inf")
        if self._attempt is not None:
            self._attempt.discard()
            self._attempt = None


def _members_like(members: Sequence[Cluster]) -> list[Cluster]:
    """Return the same processes at new addresses."""
    beside = [member for member in members if member.process_id.is_beside]
    training = [member for member in members if not member.process_id.is_beside]
    if training[0].jobs:
        training = discovery.local_clusters([member.process_id for member in training])
    return [*training, *beside]
