"""One attempt: the processes that are started together, and end together, as a state machine.

`Attempt.handle` takes one event and the time, and returns the actions to carry out, in order. There
is no thread, clock, process or file in here: `supervisor` has those, and a test plays any schedule.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from trainer.cluster import messages
from trainer.cluster.messages import Message, Phase
from trainer.cluster.signals import STACKS, Decision, Request, StopRequests
from trainer.cluster.spec import BESIDE, Cluster, ProcessId
from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DONE, RESTARTABLE, WRONG_INPUT
from trainer.launch.watchdog import Watch
from trainer.runs.process_status import log_of
from trainer.strategies.strategy import Strategy

_CHECK_SECS = 5.0  # between two checks who is missing at the start
_CAUSE_SECS = 3.0  # how long the cause of a lost peer may take to arrive
_LEAVE_SECS = 60.0  # how long after the first process the last may still be leaving
_END_SECS = 10.0  # how long a killed process may take to end
NEVER = float("inf")


@dataclass(frozen=True)
class Begin:
    """The attempt begins; these processes were started ahead."""

    ahead: Sequence[ProcessId] = ()


@dataclass(frozen=True)
class Received:
    """A process, a sweep or the user (None) has sent a message."""

    source: ProcessId | None
    message: Message


@dataclass(frozen=True)
class Tick:
    """It is late enough for what is due by the clock."""


@dataclass(frozen=True)
class NotStarted:
    """A process could not be started."""

    process_id: ProcessId
    error: str


@dataclass(frozen=True)
class Refused:
    """A process was lost too often to be restarted alone; `code` is that of its end."""

    process_id: ProcessId
    code: int


@dataclass(frozen=True)
class Examined:
    """The processes that are stopped (SIGSTOP), and the stacks of the others."""

    stopped: Collection[ProcessId]
    stacks: Mapping[ProcessId, str]


@dataclass(frozen=True)
class Listening:
    """These addresses accept connections."""

    addresses: Collection[str]


@dataclass(frozen=True)
class Stopped:
    """When the attempt is over, a process was stopped (SIGSTOP): it may be why others left."""

    process_id: ProcessId


Event: TypeAlias = Begin | Received | Tick | NotStarted | Refused | Examined | Listening | Stopped


@dataclass(frozen=True)
class Start:
    """Start a process, or let one begin that was started ahead."""

    process_id: ProcessId


@dataclass(frozen=True)
class Restart:
    """Start a lost process again, alone, and report `lines`; `code` is that of its end."""

    process_id: ProcessId
    code: int
    lines: Sequence[str]


@dataclass(frozen=True)
class Send:
    """Send a message to a process."""

    process_id: ProcessId
    message: Message


@dataclass(frozen=True)
class SendSignal:
    """Send a signal to the process of this name, if it lives, or to the supervisor."""

    name: str
    number: int


@dataclass(frozen=True)
class Examine:
    """Find out which processes are stopped, and the stacks of the others."""


@dataclass(frozen=True)
class Probe:
    """Find out which addresses accept connections."""

    addresses: Sequence[str]


@dataclass(frozen=True)
class StartStandby:
    """Start the processes of the next attempt."""


@dataclass(frozen=True)
class EndStandby:
    """End the processes of the next attempt: there will be none."""


@dataclass(frozen=True)
class ShowUnsaved:
    """Print why the processes leave without saving, and what the newest checkpoint is."""

    reason: str


@dataclass(frozen=True)
class Show:
    """Show a message: of a process, or of this one (None)."""

    message: Message
    process_id: ProcessId | None = None


@dataclass(frozen=True)
class ShowStalled:
    """Show that a process hangs."""

    process_id: ProcessId


Action: TypeAlias = (
    Start | Restart | Send | SendSignal | Examine | Probe | StartStandby | EndStandby
    | Show | ShowUnsaved | ShowStalled
)  # fmt: skip


class Failure(NamedTuple):
    """The process that failed first, not one that lost it; its end: `was killed by SIGKILL`."""

    process_id: ProcessId
    end: str


class Attempt:
    """Decides what to do with the processes of one attempt.

    Attributes:
        code: the exit code of the process that decides; negative for the signal that killed it.
        failure: why the attempt failed, or None.

    Args:
        strategy: names the jobs that serve, and those that may be restarted alone.
        members: the processes to start; the messages of the first are shown to the user.
        standby_secs: how long to train before the next attempt gets started; NEVER: not at all.
    """

    def __init__(
        self,
        experiment: Experiment,
        strategy: Strategy,
        members: Sequence[Cluster],
        requests: StopRequests,
        run_dir: Path,
        standby_secs: float = NEVER,
    ) -> None:
        self.code = DONE
        self.failure: Failure | None = None
        self._experiment = experiment
        self._members = {member.process_id: member for member in members}
        self._service_jobs = strategy.service_jobs | BESIDE  # these have nothing to save
        self._restartable_jobs = strategy.restartable_jobs | BESIDE
        self._requests = requests
        self._run_dir = run_dir
        self._now = 0.0
        self._actions: list[Action] = []
        self._to_start = deque(self._members)
        self._living: dict[ProcessId, None] = {}  # in the order of their starts
        self._kills: dict[ProcessId, float] = {}  # when a killed process must have ended
        self._join_wait = JoinWait(self._members, strategy.start_timeout_secs)
        self._watch = Watch(experiment.watchdog)
        self._is_examined = False
        self._has_shown_error = False
        self._reports: dict[ProcessId, messages.Crash] = {}
        self._standby_secs = standby_secs
        self._standby_at = NEVER
        self._grace_ends = NEVER
        self._deadline: float | None = None
        self._has_left = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do but to kill the processes that live."""
        if self._deadline is not None and (self._now >= self._deadline or not self._living):
            return True
        return not self._living and not self._to_start

    @property
    def due_at(self) -> float:
        """When to send `Tick` if no other event comes before."""
        if self._deadline is not None:
            return min(self._deadline, self._grace_ends)
        if self._to_start:
            return self._now
        alarm = NEVER if self._is_examined else self._watch.alarm()
        times = (self._grace_ends, self._join_wait.due_at, self._standby_at, alarm)
        return min(*times, *self._kills.values())

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take an event at a time in seconds, never before the last; return what to do."""
        self._now = now
        self._actions = []
        match event:
            case Begin(ahead):
                for process_id in ahead:
                    self._to_start.remove(process_id)
                    self._start(Start(process_id))
            case Received(source, (messages.SignalReceived() | messages.Leave()) as request):
                self._take_request(request, source)
            case Received(source, message) if source in self._living:
                self._receive(source, message)
            case Tick():
                self._tick()
            case NotStarted(process_id, error):
                self._remove(process_id)
                self._fail(process_id, f"could not be started: {error}", RESTARTABLE)
            case Refused(process_id, code):
                self._remove(process_id)
                self._give_up(process_id, code)
            case Examined():
                self._end_stall(event)
            case Listening(addresses):
                self._report_missing(addresses)
            case Stopped(process_id) if self.code == RESTARTABLE:
                self.failure = Failure(process_id, "was stopped by a signal")
        return self._actions

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _say(self, text: str) -> None:
        self._do(Show(messages.Line(text)))

    def _start(self, action: Start | Restart) -> None:
        process_id = action.process_id
        self._do(action)
        self._living[process_id] = None
        self._reports.pop(process_id, None)
        self._watch.begin(process_id, self._now)

    def _remove(self, process_id: ProcessId) -> None:
        self._living.pop(process_id, None)
        self._kills.pop(process_id, None)
        self._join_wait.end(process_id)
        self._watch.end(process_id)

    def _tick(self) -> None:
        if self._now >= self._grace_ends:
            grace_secs = self._experiment.preemption.grace_secs
            self._leave_at_once(f"preemption.grace_secs ({grace_secs:g}) are over")
        if self._deadline is not None:
            return
        if self._to_start:
            # One at a time: hundreds take minutes, in which a request must be answered.
            self._start(Start(self._to_start.popleft()))
            return
        if self._now >= self._join_wait.due_at:
            self._do(Probe(self._join_wait.check(self._now)))
        if self._now >= self._standby_at:
            self._standby_at = NEVER
            self._do(StartStandby())
        if self._now >= self._watch.alarm() and not self._is_examined:
            self._is_examined = True
            self._do(Examine())
        for process_id, until in self._kills.items():
            if self._now >= until:
                self._fail(process_id, "was killed but does not end", RESTARTABLE)

    def _receive(self, process_id: ProcessId, message: Message) -> None:
        match message:
            case messages.SignalRequest(name, number):
                self._do(SendSignal(name, number))
            case messages.Exit(code):
                self._remove(process_id)
                self._handle_exit(process_id, code)
                if self.failure and all(living.is_beside for living in self._living):
                    self._deadline = self._now  # no process is left that can report the cause
            case messages.Phase() | messages.Progress():
                self._watch.update(process_id, message, self._now)
                if isinstance(message, Phase):
                    self._enter_phase(process_id, message.phase)
                self._show(process_id, message)
            case _:
                self._show(process_id, message)

    def _enter_phase(self, process_id: ProcessId, phase: str) -> None:
        if self._join_wait.enter_phase(process_id, phase, self._now):
            self._leave_early()
        if phase == "train" and not self._requests.number:
            self._standby_at = min(self._standby_at, self._now + self._standby_secs)
            self._standby_secs = NEVER  # once

    def _show(self, process_id: ProcessId, message: Message) -> None:
        if isinstance(message, messages.Crash):
            self._reports[process_id] = message
        if self._is_shown(process_id, message):
            self._do(Show(message, process_id))

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
        return process_id == next(iter(self._members))

    def _take_request(self, request: Request, source: ProcessId | None) -> None:
        """Act on a stop or save request of the user, of a sweep, or of a process of the run."""
        match self._requests.decide(request, source):
            case Decision.SAVE:
                self._forward(request)
            case Decision.LEAVE:
                self._leave_at_once("a second SIGINT")
            case Decision.STOP:
                name = signal.Signals(self._requests.number).name
                receiver = f" to {source}" if source else ""
                hint = self._requests.hint()
                self._say(f"{name}{receiver}: saving, then exiting{hint}.")
                self._grace_ends = self._now + (self._experiment.preemption.grace_secs or NEVER)
                self._forward(request)
                self._standby_at = NEVER
                self._do(EndStandby())
                self._leave_early()

    def _forward(self, request: Request) -> None:
        """Forward a request to the processes that train, or to all if none does."""
        for process_id in self._trainers() or self._living:
            self._do(Send(process_id, request))

    def _trainers(self) -> list[ProcessId]:
        return [living for living in self._living if living.job not in self._service_jobs]

    def _leave_early(self) -> None:
        """Stop now if requested before any process has trained: joining ignores requests."""
        trainers = self._trainers()
        is_joining = not any(map(self._watch.has_begun, trainers))
        is_early = is_joining if trainers or self._to_start else self._join_wait.is_waiting
        if self._requests.number and is_early and self._deadline is None:
            self.code = 128 + self._requests.number
            self._deadline = self._now

    def _leave_at_once(self, reason: str) -> None:
        self._deadline = self._now
        self._grace_ends = NEVER
        if not self._has_left:  # otherwise everything has been saved
            self.code = CRASHED
            self._do(ShowUnsaved(reason))

    def _end_stall(self, examined: Examined) -> None:
        """Report the process that hangs; restart it alone, or end the attempt."""
        self._is_examined = False
        if self._deadline is not None or self._now < self._watch.alarm():
            return  # the attempt ends, or the process has made progress meanwhile
        logs = {process_id: log_of(self._run_dir, process_id) for process_id in self._living}
        hung, lines = self._watch.report(examined.stopped, examined.stacks, logs, self._now)
        for line in lines:
            self._say(line)
        self._do(ShowStalled(hung))
        if hung.job in self._restartable_jobs:
            self._do(SendSignal(str(hung), signal.SIGKILL))
            self._kills[hung] = self._now + _END_SECS
            self._watch.end(hung)
            self._watch.renew(self._now)
        else:
            self._fail(hung, "made no progress", RESTARTABLE)

    def _handle_exit(self, process_id: ProcessId, code: int) -> None:
        if is_success(code):
            self._let_others_leave(self._members[process_id], code)
        elif process_id.is_actor and self._deadline is not None:
            return  # the others are leaving
        elif process_id.job in self._restartable_jobs and _is_lost(process_id, code):
            report = self._reports.get(process_id)
            text = report.text if report and process_id.is_actor else ""
            lines = [f"{process_id}: {line}" for line in text.splitlines()]
            lines.append(f"warning: {process_id} {describe(code)}; starting it again alone")
            self._start(Restart(process_id, code, lines))
            if report:
                self._reports[process_id] = report  # for `_give_up`
        else:
            self._give_up(process_id, code)

    def _give_up(self, process_id: ProcessId, code: int) -> None:
        """End the attempt because of a process that is not restarted, if it is the cause."""
        how = describe(code)
        if self.failure is None and process_id.is_actor and _is_lost(process_id, code):
            log = log_of(self._run_dir, process_id)
            if report := self._reports.get(process_id):
                crash = messages.Crash(report.text, report.cause, str(process_id))
                self._do(Show(crash, process_id))
            text = (
                f"gave up after {self._experiment.actors.max_restarts} lost actors since the "
                f"newest checkpoint (actors.max_restarts): {process_id} {how}; its log is {log}"
            )
            self._do(Show(messages.ErrorLine(text)))
            self._fail(process_id, how, CRASHED)
        elif self.failure is None or (
            # A process that lost a peer often ends before that peer: any other end is a cause.
            self.code == RESTARTABLE != code and process_id != self.failure.process_id
        ):
            self._fail(process_id, how, code, _CAUSE_SECS if code == RESTARTABLE else 0.0)

    def _fail(self, process_id: ProcessId, how: str, code: int, secs: float = 0.0) -> None:
        self.failure = Failure(process_id, how)
        self.code = code
        self._deadline = self._now + secs

    def _let_others_leave(self, member: Cluster, code: int) -> None:
        """Let the others leave after a process that was done or has stopped."""
        if self.failure is not None:
            return
        if code != DONE:
            self.code = code
        if member.is_chief:
            for process_id in self._living:
                # An evaluator has the last checkpoint to evaluate, unless the training stops.
                is_needed = process_id.is_evaluator and code == DONE
                if process_id.job in self._service_jobs and not is_needed:
                    self._do(Send(process_id, messages.Dismiss()))
        self._has_left = self._has_left or not member.process_id.is_beside
        has_evaluator = any(process_id.is_evaluator for process_id in self._living)
        is_evaluating = self.code == DONE and has_evaluator
        if self._deadline is None and self._has_left and not is_evaluating:
            self._deadline = self._now + _LEAVE_SECS

    def _report_missing(self, listening: Collection[str]) -> None:
        """Print which processes are missing at the start; give up when it takes too long."""
        awaited = self._join_wait.awaited(listening, self._now)
        if awaited is None or self._deadline is not None:
            return
        process_id, missing, secs, is_over, hung = awaited
        if not missing:
            how = f"has not joined the others in {secs:.0f} s, though all have started"
            self._fail(process_id, how, RESTARTABLE)
            return
        if not is_over:
            self._say(f"{process_id} waits for {missing} to start ({secs:.0f} s)")
            return
        if hung is not None:
            self._do(SendSignal(str(hung), STACKS))  # its log then shows where it hangs
            how = f"has not joined the others {secs:.0f} s after {process_id}"
            self._fail(hung, how, RESTARTABLE, _CAUSE_SECS)
            return
        how = f"waited {secs:.0f} s for {missing} to start"
        fix = "start them, or wait longer with strategy.start_timeout_secs"
        self._do(Show(messages.ErrorLine(f"{process_id} {how}; {fix}")))
        self._fail(process_id, how, CRASHED)


def is_success(code: int) -> bool:
    """Return whether an exit code is that of a process that was done, or has saved and stopped."""
    return code == DONE or code > 128


def is_restartable(code: int) -> bool:
    """Return whether a process was killed or lost its peers, which a restart may repair."""
    return code < 0 or code == RESTARTABLE


def _is_lost(process_id: ProcessId, code: int) -> bool:
    # An actor that has crashed is replaced too: it is its environment that has failed.
    return is_restartable(code) or (process_id.is_actor and code != WRONG_INPUT)


def describe(code: int) -> str:
    """Return how a process failed: `was killed by SIGKILL`."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "lost its peers" if code == RESTARTABLE else "failed"


class Awaited(NamedTuple):
    """A process that waits for others, and how long; `missing` are those that have not started.

    `hung` is the first of them if this command has started all of them: no other host is to come.
    """

    process_id: ProcessId
    missing: str
    secs: float
    is_over: bool
    hung: ProcessId | None


class JoinWait:
    """Which processes wait for which others, in one attempt.

    Attributes:
        due_at: when to call `check`; NEVER while no process waits.
    """

    def __init__(self, members: Mapping[ProcessId, Cluster], timeout_secs: float) -> None:
        self.due_at = NEVER
        self._members = members
        self._timeout_secs = timeout_secs
        self._since: dict[ProcessId, float] = {}
        self._present: set[ProcessId] = set()
        self._complete_since: float | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._since)

    def enter_phase(self, process_id: ProcessId, phase: str, now: float) -> bool:
        """Take the phase of a process; return whether the process waits for others in it."""
        self._present.add(process_id)
        if phase != "join" or not self._members[process_id].jobs:
            self._leave(process_id)
            return False
        is_first = not self._since
        self._since.setdefault(process_id, now)
        if is_first:
            self.check(now)
        return True

    def end(self, process_id: ProcessId) -> None:
        self._leave(process_id)
        self._present.discard(process_id)

    def check(self, now: float) -> list[str]:
        """Return the addresses of the processes that are not started here; set the next check."""
        first, since = next(iter(self._since.items()))
        deadline = since + self._timeout_secs
        self.due_at = now + _CHECK_SECS
        if now < deadline:
            self.due_at = min(self.due_at, deadline)
        others = self._members[first].others
        return [address for other, address in others.items() if other not in self._members]

    def awaited(self, listening: Collection[str], now: float) -> Awaited | None:
        """Return the process that has waited longest, or None if it only has to connect to all.

        That is bounded too: a process that hangs while it connects is in no other phase.
        """
        if not self._since:
            return None
        process_id, since = next(iter(self._since.items()))
        missing = {
            other: address
            for other, address in self._members[process_id].others.items()
            if (other not in self._present if other in self._members else address not in listening)
        }
        if missing:
            self._complete_since = None
        else:
            if self._complete_since is None:
                self._complete_since = now
            since = self._complete_since
        secs = now - since
        if not missing and secs < self._timeout_secs:
            return None
        names = ", ".join(f"{other} ({address})" for other, address in missing.items())
        hung = next(iter(missing), None) if missing.keys() <= self._members.keys() else None
        return Awaited(process_id, names, secs, secs >= self._timeout_secs, hung)

    def _leave(self, process_id: ProcessId) -> None:
        self._since.pop(process_id, None)
        if not self._since:
            self.due_at = NEVER
            self._complete_since = None
