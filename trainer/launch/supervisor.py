"""Runs the processes of a run, and restarts them after a failure that a restart may repair.

It imports no TensorFlow: the parent stays small, a crash or hang of TensorFlow cannot take it
along, and a sweep leaks nothing from one point to the next.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from trainer.cluster import discovery, messages
from trainer.cluster.environment import visible_gpus
from trainer.cluster.fork_server import END_SECS
from trainer.cluster.host_memory import available_bytes
from trainer.cluster.messages import Message
from trainer.cluster.ports import is_listening
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import CRASHED, DONE, RESTARTABLE, StorageError
from trainer.launch import attempt
from trainer.launch.attempt import NEVER, Action, Attempt, Event, Failure, Received
from trainer.launch.processes import Messages
from trainer.launch.ray_engine import ManagedProcess
from trainer.launch.run_context import RunContext, no_standby
from trainer.launch.watchdog import examine
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.ledger import Ledger
from trainer.runs.process_status import log_of
from trainer.runs.state_memory import Position, StateMemory

_LONGEST_PAUSE_SECS = 300.0
_FIRST_SECS = 30.0
"""How long the first attempt trains before it gets a standby: a shorter run does without."""
_LATER_SECS = 2.0
"""How long a later one does: what has failed once is expected to fail again."""
_FRACTION_OF_MEMORY = 0.5
"""The fraction of the free memory that `restart.standby=auto` takes."""


class RestartBudget:
    """A number of restarts; newer state to resume from renews it."""

    def __init__(self, newest_step: Callable[[], int], max_restarts: int) -> None:
        self.spent = 0
        self._times: list[float] = []
        self._newest_step = newest_step
        self._max_restarts = max_restarts
        self._newest = newest_step()

    def spend(self) -> bool:
        """Count one more restart; return whether it is allowed."""
        if (newest := self._newest_step()) > self._newest:
            self._newest = newest
            self.spent = 0
        self.spent += 1
        self._times.append(time.monotonic())
        return self.spent <= self._max_restarts

    def warning(self) -> str:
        """Return a line if newer state hides that restarts are frequent; empty if they are not."""
        last_hour = sum(time.monotonic() - at < 3600 for at in self._times)
        if last_hour <= max(1, self._max_restarts):
            return ""
        return (
            f"warning: restart {len(self._times)} of this command, {last_hour} within an hour: a "
            "cause that returns, such as memory that grows, costs time with each; see the logs, "
            "and `dmesg` for processes that the kernel has killed"
        )


class Memories(dict[ProcessId, StateMemory]):
    """The memory of each process, owned here so that it outlives the process.

    The files have no names: nothing is left when the command and its processes are gone.

    Args:
        service_jobs: jobs whose processes do not train; parameter servers hold the state of the
            chief, which keeps it in its own memory.
    """

    def __init__(self, *, is_on: bool, service_jobs: Collection[str] = ()) -> None:
        super().__init__()
        self._is_on = is_on and hasattr(os, "memfd_create")
        self._service_jobs = service_jobs

    def add(self, process_id: ProcessId) -> None:
        """Create the memory of a process that trains, unless it has one."""
        trains = not process_id.is_beside and process_id.job not in self._service_jobs
        if self._is_on and trains and process_id not in self:
            name = f"steadfast-{process_id}"
            self[process_id] = StateMemory(os.memfd_create(name, os.MFD_CLOEXEC))

    def newest(self) -> list[str]:
        """Return the names of the processes whose memory has a snapshot, the newest first."""
        positions = dict(self._positions())
        return sorted(positions, key=lambda name: positions[name], reverse=True)

    def newest_step(self) -> int:
        """Return the step of the newest snapshot; 0: there is none."""
        return max((position.step for _, position in self._positions()), default=0)

    def close(self) -> None:
        for memory in self.values():
            memory.close()
        self.clear()

    def _positions(self) -> Iterator[tuple[str, Position]]:
        for process_id, memory in self.items():
            if header := memory.newest():
                yield str(process_id), header.position


class Processes(dict[ProcessId, ManagedProcess]):
    """The living processes of one attempt.

    Attributes:
        messages: what they send; None: check the stop requests.
        phases: the last phase of each process that has sent one.
    """

    def __init__(
        self,
        context: RunContext,
        members: Sequence[Cluster],
        create: Callable[[ProcessId], ManagedProcess],
        memories: Memories,
    ) -> None:
        super().__init__()
        self.members = {member.process_id: member for member in members}
        self.messages: Messages = queue.SimpleQueue()
        self.phases: dict[ProcessId, str] = {}
        self._context = context
        self._create = create
        self._memories = memories

    def start(self, process_id: ProcessId, *, is_standby: bool = False) -> None:
        """Start a process, perhaps again; raise an OSError if that fails."""
        self[process_id] = process = self._create(process_id)
        self._memories.add(process_id)
        process.assign(
            self._context.directory,
            self._context.experiment,
            self.members[process_id],
            self.messages,
            self._memories,
            is_standby=is_standby,
        )

    def begin(self, process_id: ProcessId) -> None:
        """Have a process take part; start it if it was not started ahead, or raise an OSError."""
        if process_id not in self:
            self.start(process_id)
        process = self[process_id]
        self._context.console.begin(process_id, process.host)
        process.send(messages.Begin(self._memories.newest()))

    def wake(self) -> None:
        """Trigger a check of the stop requests; called in signal handlers, so at any moment."""
        self.messages.put(None)

    def kill(self) -> None:
        """Kill the processes that are left; continue without one that does not end."""
        for process in self.values():
            process.signal(signal.SIGKILL)  # all of them before the first is waited for
        ends = time.monotonic() + END_SECS
        for process_id, process in self.items():
            if left := process.kill(max(0.0, ends - time.monotonic())):
                phase = self.phases.get(process_id, "import")
                self._context.console.line(
                    f"warning: {process_id} ({left}, phase {phase}) was killed but does not end"
                )
        self.clear()


class Supervisor:
    """Runs attempts until one ends for good."""

    def __init__(
        self,
        context: RunContext,
        members: Callable[[], list[Cluster]],
        create: Callable[[ProcessId], ManagedProcess],
        ledger: Ledger,
    ) -> None:
        self.failure: Failure | None = None
        self._context = context
        self._console = context.console
        self._stop_requests = context.stop_requests
        experiment = context.experiment
        self._restart = experiment.restart
        self._members = members
        self._create = create
        self._ledger = ledger
        keeps_memory = experiment.trains and experiment.checkpoint.memory != "never"
        self._memories = Memories(
            is_on=keeps_memory and not experiment.launch.uses_ray,
            service_jobs=context.strategy.service_jobs,
        )
        self._standby: Processes | None = None
        self._standby_secs = NEVER
        if can_have_standby(context) and self._restart.standby != "never":
            self._standby_secs = 0.0 if self._restart.standby == "always" else _FIRST_SECS
        self._attempts = RestartBudget(self._newest_step, self._restart.max_restarts)
        # Not by the learner's steps: it continues without an actor that always fails.
        self._actors = RestartBudget(self._newest_checkpoint, experiment.actors.max_restarts)

    def supervise(self) -> int:
        """Run the processes.

        Returns:
            The exit code for the user: 0, 1, 2, 130 or 143.

        Raises:
            ConfigError: another host has taken over the run.
        """
        with closing(self._memories):
            try:
                code = self._run_attempts()
            finally:
                self._end_standby()
            is_in_memory = self._memories.newest_step() > self._newest_checkpoint()
            if code > 128 and is_in_memory and self._context.cluster.is_chief:
                # Stopped between two attempts: no exit code may claim that it has saved.
                self._console.error(left_without_saving(self._context.directory.path))
                return CRASHED
            return code

    def _run_attempts(self) -> int:
        while True:
            self._context.directory.check_lock()
            members = self._members()
            if number := self._stop_requests.drain():  # it may have waited for places
                return 128 + number
            processes = self._take_standby() or self._processes(members)
            with self._stop_requests.waking(processes.wake):
                if number := self._stop_requests.drain():
                    processes.kill()
                    return 128 + number
                code, failure = self._run(processes)
            if self._standby_secs != NEVER:
                self._standby_secs = min(self._standby_secs, _LATER_SECS)
            self.failure = failure or self.failure
            if failure is None or not attempt.is_restartable(code):
                return code
            log = log_of(self._context.directory.path, failure.process_id)
            text = f"{failure.process_id} {failure.end}"
            self._console.line(f"warning: {text}; its log is {log}")
            if not self._may_restart(processes, f"{text}; the log is {log}"):
                return CRASHED
            secs = _pause_secs(self._restart.backoff_secs, self._attempts.spent)
            if number := self._wait(secs):
                return 128 + number

    def _processes(self, members: Sequence[Cluster]) -> Processes:
        return Processes(self._context, members, self._create, self._memories)

    def _run(self, processes: Processes) -> tuple[int, Failure | None]:
        """Run the processes of one attempt until all have ended.

        Returns:
            The exit code of the process that decides, negative for the signal that killed it, and
            the failure, or None.
        """
        machine = Attempt(
            self._context.experiment,
            self._context.strategy,
            list(processes.members.values()),
            self._stop_requests,
            self._context.directory.path,
            self._standby_secs,
        )
        event: Event = attempt.Begin(list(processes))
        try:
            self._handle(event, machine, processes)
            while not machine.is_over:
                self._handle(self._next(machine, processes), machine, processes)
            for process_id, process in processes.items():
                if machine.code == RESTARTABLE and process.is_stopped():
                    self._handle(attempt.Stopped(process_id), machine, processes)
            for process_id in processes:
                if machine.failure is None or process_id != machine.failure.process_id:
                    self._console.end(process_id, "ended")
        finally:
            processes.kill()
        return machine.code, machine.failure

    def _next(self, machine: Attempt, processes: Processes) -> Event:
        due_at = machine.due_at
        timeout = None if due_at == NEVER else max(0.0, due_at - time.monotonic())
        try:
            received = processes.messages.get(timeout=timeout)
        except queue.Empty:
            return attempt.Tick()
        if received is not None:
            return Received(*received)
        if request := self._stop_requests.take():
            return Received(request[1], request[0])
        return attempt.Tick()

    def _handle(self, event: Event, machine: Attempt, processes: Processes) -> None:
        """Give an event to the state machine, and carry out what it decides."""
        match event:
            case Received(ProcessId() as process_id, message) if process_id in processes:
                self._show_state(process_id, message, processes)
        for action in machine.handle(event, time.monotonic()):
            if answer := self._perform(action, processes):
                self._handle(answer, machine, processes)

    def _show_state(self, process_id: ProcessId, message: Message, processes: Processes) -> None:
        match message:
            case messages.Exit(code):
                del processes[process_id]
                self._console.end(process_id, *_console_state(code))
            case messages.Phase() | messages.Progress():
                self._console.update(process_id, message)
                if isinstance(message, messages.Phase):
                    processes.phases[process_id] = message.phase

    def _perform(self, action: Action, processes: Processes) -> Event | None:
        """Carry out an action; return the answer, if it has one."""
        run_dir = self._context.directory.path
        match action:
            case attempt.Start(process_id):
                return self._begin(process_id, processes)
            case attempt.Restart(process_id, code, lines):
                budget = self._actors if process_id.is_actor else self._attempts
                if not budget.spend():
                    return attempt.Refused(process_id, code)
                for line in lines:
                    self._console.line(line)
                return self._begin(process_id, processes)
            case attempt.Send(process_id, message):
                processes[process_id].send(message)
            case attempt.SendSignal(name, number):
                if name == "supervisor":
                    os.kill(os.getpid(), number)
                for process_id, process in processes.items():
                    if str(process_id) == name:
                        process.signal(number)
            case attempt.Examine():
                logs = {process_id: log_of(run_dir, process_id) for process_id in processes}
                return attempt.Examined(*examine(processes, logs))
            case attempt.Probe(addresses):
                return attempt.Listening(list(filter(is_listening, addresses)))
            case attempt.StartStandby():
                self._start_standby(processes)
            case attempt.EndStandby():
                self._end_standby()
            case attempt.Show(message, process_id):
                log = log_of(run_dir, process_id or next(iter(processes.members)))
                self._console.show(message, log)
            case attempt.ShowUnsaved(reason):
                self._console.error(f"{reason}: {left_without_saving(run_dir)}")
            case attempt.ShowStalled(process_id):
                self._console.end(process_id, "stalled")
        return None

    def _begin(self, process_id: ProcessId, processes: Processes) -> Event | None:
        try:
            processes.begin(process_id)
        except StorageError:
            raise
        except OSError as error:  # no memory or descriptors, perhaps for a while
            if process := processes.pop(process_id, None):
                process.kill()
            return attempt.NotStarted(process_id, str(error))
        return None

    def _start_standby(self, present: Processes) -> None:
        """Start the next attempt ahead, with as many processes, if the memory allows.

        Its processes connect, build and compile, and wait where a restart begins to differ: before
        they restore. They write nothing into the run directory until then.
        """
        free = available_bytes()
        needed = sum(process.resident_bytes() for process in present.values())
        is_limited = self._restart.standby == "auto" and free is not None
        if is_limited and needed > _FRACTION_OF_MEMORY * (free or 0):
            return
        self._standby = self._processes(_members_like(list(present.members.values())))
        try:
            for process_id in self._standby.members:
                if not process_id.is_beside:
                    self._standby.start(process_id, is_standby=True)
        except OSError:  # no process, descriptor or log can be had: a restart goes without
            self._end_standby()

    def _take_standby(self) -> Processes | None:
        """Return the standby for the next attempt, or None if it has lost a process."""
        if self._standby and any(process.has_ended() for process in self._standby.values()):
            self._end_standby()
        standby, self._standby = self._standby, None
        return standby

    def _end_standby(self) -> None:
        if self._standby is not None:
            self._standby.kill()
            self._standby = None

    def _may_restart(self, processes: Processes, failure: str) -> bool:
        """Count one more restart; return whether it is allowed, and print why it is not."""
        while not processes.messages.empty():
            match processes.messages.get():
                case process_id, messages.SignalReceived() as request:
                    self._stop_requests.decide(request, process_id)
        if self._stop_requests.drain():
            # It did not save: no exit code may claim that it did.
            self._console.error(left_without_saving(self._context.directory.path))
            return False
        if self._attempts.spend():
            if warning := self._attempts.warning():
                self._console.line(warning)
            return True
        self._console.error(
            f"gave up after {self._restart.max_restarts} restarts (restart.max_restarts): {failure}"
        )
        return False

    def _wait(self, secs: float) -> int:
        """Wait before a restart; return the signal that requested a stop meanwhile, or 0."""
        self._ledger.mark("restart")
        self._console.cause = ""  # the errors so far are not how the run ends
        pause = f" in {secs:g} s" if secs else ""
        self._console.line(f"Restarting{pause} from {self._origin()}.")
        return self._stop_requests.wait(secs)

    def _origin(self) -> str:
        if step := self._newest_step():
            is_kept = self._memories.newest_step() == step
            return f"step {step:,}, in memory" if is_kept else "the newest checkpoint"
        return "the beginning"

    def _newest_step(self) -> int:
        return max(self._newest_checkpoint(), self._memories.newest_step())

    def _newest_checkpoint(self) -> int:
        """Return the step of the newest checkpoint; 0: there is none."""
        return max(committed_steps(self._context.directory.path / "checkpoints"), default=0)


def _pause_secs(first_secs: float, number: int) -> float:
    """Return the pause before restart `number` in a row: none, then doubled from `first_secs`."""
    if number == 1:
        return 0.0
    longest = max(first_secs, _LONGEST_PAUSE_SECS)
    doublings = min(number - 2, 60)  # far beyond the limit, and within what a float holds
    return min(first_secs * 2.0**doublings, longest)


def left_without_saving(run_dir: Path) -> str:
    """Return the error of a stop that could not save."""
    steps = committed_steps(run_dir / "checkpoints")
    if not steps:
        return "left without saving; there is no checkpoint yet"
    return f"left without saving; the newest checkpoint is that of step {steps[-1]}"


def can_have_standby(context: RunContext) -> bool:
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


def _members_like(members: Sequence[Cluster]) -> list[Cluster]:
    beside = [member for member in members if member.process_id.is_beside]
    training = [member for member in members if not member.process_id.is_beside]
    if training[0].jobs:
        training = discovery.local_clusters([member.process_id for member in training])
    return [*training, *beside]


def _console_state(code: int) -> tuple[str, str]:
    """Return the state of a process that has ended, for the table of processes, and a detail."""
    if attempt.is_success(code):
        return ("done" if code == DONE else "stopped"), ""
    if code == RESTARTABLE:
        return "left", attempt.describe(code)
    return ("lost", attempt.describe(code)) if code < 0 else ("failed", "")
