"""A simulation of failures: the real supervisor in a world of processes, hosts and a clock.

    python -m tests.simulate --schedules 100000 --seed 0

Each host has a command, which is the real `Supervisor` with its `Attempt`; what it starts, waits
for, reads and prints is simulated here. A seed draws the layout, how long everything takes, and a
schedule of faults. After each event the world checks what must hold; see `World`. A schedule that
breaks a rule is printed without the faults that it breaks it without.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import queue
import random
import signal
import sys
import time
from collections import deque
from types import SimpleNamespace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from greenlet import getcurrent, greenlet

from trainer.cli.compose import compose
from trainer.cluster import messages
from trainer.cluster.messages import Exit, Phase, SignalReceived
from trainer.cluster.signals import SAVES, StopRequests
from trainer.cluster.spec import TF_CONFIG, Cluster, ProcessId
from trainer.errors import CRASHED, DONE, RESTARTABLE, WRONG_INPUT, StorageError
from trainer.launch import supervisor
from trainer.launch.run_context import Command as Typed
from trainer.launch.run_context import RunContext
from trainer.runs.state_memory import Position
from trainer.strategies.strategy import Strategy

LAST_STEP = 10
FAILURE_SECS = 1800 + 300 + 60 + 140
"""A failure costs no more: the longest limit of the watchdog, a pause, the wait for others at the
start, and what a start takes."""


class Synchronous(Strategy):
    start_timeout_secs = 60


class Serving(Synchronous):
    service_jobs = restartable_jobs = frozenset({"ps", "worker"})


class Layout(NamedTuple):
    """The processes of a run: on one machine, or each on a host of its own."""

    names: tuple[str, ...]
    strategy: type[Strategy] = Synchronous
    are_apart: bool = False
    options: tuple[str, ...] = ()
    least: int = 0


LAYOUTS = (
    Layout(("worker-0",)),
    Layout(("worker-0", "worker-1")),
    Layout(("worker-0", "worker-1", "worker-2", "evaluator-0")),
    Layout(("worker-0", "actor-0", "actor-1")),
    Layout(("chief-0", "worker-0", "worker-1", "ps-0"), Serving),
    Layout(("chief-0", "worker-0", "ps-0", "evaluator-0"), Serving),
    Layout(("worker-0", "worker-1"), are_apart=True),
    Layout(("worker-0", "worker-1", "worker-2", "evaluator-0"), are_apart=True),
    Layout(("worker-0", "worker-1", "worker-2"), options=("launch=ray", "strategy=multi_worker"), least=1),
)

OPTIONS = ((), (), ("preemption.grace_secs=20",), ("restart.max_restarts=1",), ("restart.standby=always",),
           ("checkpoint.memory=never",), ("restart.max_restarts=0",))  # fmt: skip


class Fault(NamedTuple):
    """What goes wrong.

    Attributes:
        at: the seconds after which it does; of an integer, the number of calls that the
            supervisors have made, so that it comes in the middle of what they do.
        target: which process or host, modulo those that there are.
    """

    kind: str
    at: float
    target: int


class Killed(BaseException):
    """The command was killed; what it does on its way out has no effect."""


class Command(greenlet):
    """A command on a host: the supervisor, which runs until it waits; then the world goes on.

    Attributes:
        is_killed: by SIGKILL; its processes end by themselves.
        told: the errors that it has printed.
        asked: when it was first asked to stop.
        owed: the step in which the training was then; 0: there was none.
    """

    def __init__(self, world, host):
        super().__init__(self._supervise)
        self.world, self.host = world, host
        self.code, self.asked, self.owed = None, float("inf"), 0
        self.is_killed = self._is_asleep = False
        self.told, self.processes, self.memories = [], [], []
        self.requests = Requests(self, is_attended=world.random.random() < 0.5)
        self._naps = 0
        self._restarts, self._newest = -1, self.newest()

    def _supervise(self):
        world = self.world
        console = Console(self)
        directory = SimpleNamespace(path=Path("run"), check_lock=self.touch)
        members = world.members(self.host)
        context = RunContext(
            Typed(world.experiment),
            world.layout.strategy(),
            directory,
            console,
            self.requests,
            members[0] if world.layout.are_apart else Cluster(),
        )
        ledger = SimpleNamespace(mark=lambda name: self.touch())
        try:
            real = supervisor.Supervisor(context, self._members, self._create, ledger)
            self.code = real.supervise()
            self.failure = real.failure
        except StorageError as error:
            self.code, self.failure = CRASHED, error
        except Killed:
            self.code = -signal.SIGKILL
        if not self.is_killed:
            self._check_end()
        world.end(self)

    def _members(self):
        self.touch()
        self.count_restart()
        return self.world.members(self.host)

    def _create(self, process_id):
        self.touch()
        if self.world.refusals:
            self.world.refusals -= 1
            raise OSError("no memory")
        self.processes.append(Process(self, process_id))
        return self.processes[-1]

    def count_restart(self):
        """Check that the restarts since the newest state are not too many."""
        newest = self.newest()
        if newest > self._newest:
            self._newest, self._restarts = newest, 0
        self._restarts += 1
        assert self._restarts <= self.world.experiment.restart.max_restarts, "restarts"

    def _check_end(self):
        """Check what a command has left, and what its exit code says."""
        world, code = self.world, self.code
        assert not any(x.is_running for x in self.processes), "a process outlives the command"
        assert not any(memory.is_open for memory in self.memories), "a memory outlives the command"
        grace_secs = world.experiment.preemption.grace_secs or float("inf")
        assert world.now <= self.asked + grace_secs + 20.1, "the stop takes too long"
        assert code in (DONE, CRASHED, WRONG_INPUT, 130, 143), code
        if code in (CRASHED, WRONG_INPUT):
            assert self.failure or self.told, "nobody knows why"
            if any("restart.max_restarts" in str(text) for text in self.told):
                assert self._restarts == world.experiment.restart.max_restarts, "it gave up early"
        elif code == DONE:
            assert world.has_left == DONE, "it is not done"
            assert self.asked == float("inf") or self.owed >= LAST_STEP - 2, "it does not stop"
        else:
            assert code - 128 in world.asked or (code == 143 and world.asked), "nobody has asked"
            is_chief = self.host == world.ids[0]
            unsaved = max(self.kept(), self.owed) if is_chief else 0
            assert unsaved <= world.saved(), "it has not saved"

    def kept(self):
        """Return the newest step in its memories; 0: none."""
        return max((x.position.step for x in self.memories if x.position), default=0)

    def newest(self):
        """Return the newest step that it can restart from."""
        return max(self.kept(), self.world.saved())

    def touch(self):
        """Let what is to happen in the middle of the supervisor's work happen now."""
        if self.is_killed:
            return
        self.world.touch()
        if self.is_killed:
            raise Killed

    def sleep(self, secs=None):
        """Let the world go on until `wake` is called, or for so long."""
        self._naps += 1
        if secs is not None:
            self.world.later(secs, self._end_nap, self._naps)
        self._is_asleep = True
        self.parent.switch()
        if self.is_killed:
            raise Killed

    def wake(self):
        if self._is_asleep:
            self._naps += 1
            self.world.later(0, self._end_nap, self._naps)

    def _end_nap(self, nap):
        if self._is_asleep and nap == self._naps:
            self._is_asleep = False
            self.switch()

    def kill(self):
        self.is_killed = True
        self.wake()


class Requests(StopRequests):
    """The requests to stop of a command, which waits for them in the world's time."""

    def __init__(self, command, **options):
        super().__init__(**options)
        self._command = command

    def put(self, request, source=None):
        self._note(request)
        super().put(request, source)
        self._command.wake()

    def _note(self, request):
        command = self._command
        if request.number not in SAVES:
            command.owed = command.owed or command.world.step()

    def decide(self, request, source=None):
        self._note(request)
        decision = super().decide(request, source)
        if self.number:
            self._command.asked = min(self._command.asked, self._command.world.now)
            self._command.world.asked.add(self.number)
        return decision

    def wait(self, secs):
        world = self._command.world
        end = world.now + secs
        while not self.drain() and world.now < end:
            self._command.sleep(end - world.now)
        return self.number


class Inbox:
    """The messages of the processes of one attempt."""

    def __init__(self):
        self.command = getcurrent()
        self.command.touch()
        self._items = deque()
        self.meeting = {}

    def put(self, item):
        self._items.append(item)
        self.command.wake()

    def empty(self):
        return not self._items

    def get(self, timeout=None):
        world = self.command.world
        self.command.touch()
        end = float("inf") if timeout is None else world.now + timeout
        while not self._items:
            if world.now >= end:
                raise queue.Empty
            self.command.sleep(None if timeout is None else end - world.now)
        world.events += 1
        return self._items.popleft()


class Console:
    """What a command prints."""

    def __init__(self, command):
        self.cause = ""
        self._command = command

    def line(self, text):
        self._command.touch()

    def error(self, text):
        self._command.told.append(text)

    def show(self, message, log):
        if isinstance(message, messages.Problem | messages.Crash | messages.ErrorLine):
            self._command.told.append(message)

    def begin(self, process_id, host):
        pass

    def end(self, process_id, *state):
        pass

    def update(self, process_id, message):
        pass


class Memory:
    """The memory of a process: the position of the newest state in it."""

    def __init__(self, file):
        self._file = file
        self.position = None
        self.is_open = True
        getcurrent().memories.append(self)

    def newest(self):
        return self.position and SimpleNamespace(position=self.position)

    def close(self):
        supervisor.os.close(self._file)
        self.is_open = False


class Process:
    """A process, from its start to its end.

    Attributes:
        begun: the names of the memories that it may restore from, once it takes part.
        group: the processes with which it trains.
        result: the exit code that it will leave with, once it has nothing left to do.
        frozen: how it hangs, if it does: `stop` is by SIGSTOP, and `stick` in the kernel, where not
            even SIGKILL ends it.
    """

    host = None

    def __init__(self, command, process_id):
        self.id, self.command, self.world = process_id, command, command.world
        self.is_alive = True
        self.is_killed = False
        self.frozen = ""
        self.is_dismissed = self.is_serving = self.has_built = self.is_saving = False
        self.begun = self.group = self.result = None
        self.stop_number = 0
        self.attempt = None
        self._missed = []
        self.delay, self.copies, self._quiet_until = 0.0, 1, 0.0
        self._life = self._live()
        self.world.alive[self] = None

    # What the supervisor calls:

    def assign(self, directory, experiment, member, inbox, memories, *, is_standby):
        self.command.touch()
        if self.world.is_full:
            raise StorageError("the log cannot be written")
        is_again = any(x.id == self.id and x.attempt is inbox for x in self.command.processes)
        if is_again and not self.id.is_actor:
            self.command.count_restart()
        self.attempt = inbox
        self.meeting = self.world.meeting if self.world.layout.are_apart else inbox.meeting
        self.memories = {str(name): memory for name, memory in memories.items()}
        self.needed = [x for x in member.process_ids if x not in self.world.servers] or [self.id]
        self._go_on()

    def send(self, message):
        self.command.touch()
        if self.command.is_killed or not self.is_running:
            return
        match message:
            case messages.Begin(names):
                for other in self.world.alive:
                    is_earlier = other.attempt is not self.attempt or other.id == self.id
                    if other is not self and other.command.host == self.command.host and is_earlier:
                        assert other.begun is None or not other.is_running, "two attempts write"
                self.begun = names
                if self.group:
                    self.group.begin()
            case messages.Dismiss():
                self.is_dismissed = True
            case SignalReceived(number):
                self.request(number)

    def signal(self, number):
        if number == signal.SIGKILL and not self.command.is_killed:
            self.kill_by_anyone()

    def kill(self, secs=0.0):
        if self.command.is_killed:
            return ""
        self.kill_by_anyone()
        world = self.world
        end = world.now + secs
        while self.is_alive and world.now < end:
            self.command.sleep(end - world.now)
        return "process 1" if self.is_alive else ""

    def is_stopped(self):
        return self.is_alive and self.frozen == "stop"

    def has_ended(self):
        return not self.is_alive

    def resident_bytes(self):
        return 100

    # What the world calls:

    @property
    def is_running(self):
        """Whether it may still execute an instruction, such as one that writes."""
        return self.is_alive and not self.is_killed

    def request(self, number):
        if number in SAVES:
            self.is_saving = True
        else:
            self.stop_number = self.stop_number or number

    def kill_by_anyone(self):
        if self.is_running:
            self.is_killed = True
            if self.frozen != "stick":
                self.world.later(0.01, self.exit, -9)

    def freeze(self, how, secs=None):
        if self.is_running:
            self.frozen = how
            if secs is not None:
                self.world.later(secs, self._thaw)

    def _thaw(self):
        self.frozen = ""
        if self.is_killed:
            self.exit(-9)
        missed, self._missed = self._missed, []
        for function, arguments in missed:
            self.do(function, *arguments)

    def do(self, function, *arguments):
        """Do something, unless it has ended, or later if it hangs."""
        if self.frozen:
            self._missed.append((function, arguments))
        elif self.is_running:
            function(*arguments)

    def exit(self, code):
        if not self.is_alive:
            return
        self.is_alive = False
        del self.world.alive[self]
        self.report(Exit(code))
        if self.attempt and self.meeting.get(self.id) is self:
            del self.meeting[self.id]
        if self.group:
            self.group.lose(self)
        self.command.wake()

    def crash(self, code, cause):
        if self.is_running:
            is_crash = code == CRASHED
            self.report(messages.Crash(cause, cause) if is_crash else messages.Problem([cause]))
            self.exit(code)

    def report(self, message):
        """Send a message; it overtakes no other one."""
        if self.attempt is None:
            return
        world = self.world
        is_end = isinstance(message, Exit)
        at = self._quiet_until = max(self._quiet_until, world.now + self.delay)
        for _ in range(1 if is_end else self.copies):
            world.later(at - world.now, self._arrive, message)

    def _arrive(self, message):
        is_lost = self.is_killed and not isinstance(message, Exit)
        if not self.command.is_killed and not is_lost and self.command.code is None:
            self.attempt.put((self.id, message))

    def _go_on(self):
        if (secs := next(self._life, None)) is not None:
            self.world.later(secs, self.do, self._go_on)

    def _live(self):
        world = self.world
        yield world.uniform(1, 5)
        if self.id.is_beside or self.id in world.servers:
            yield from self._serve()
            return
        if len(world.ids) > 1:
            self.report(Phase("join", 0))
        self.meeting[self.id] = self
        world.meet(self)
        while not self.group:
            yield 1
            world.meet(self)
        for phase in ("start", "compile"):
            self.report(Phase(phase, 0))
            yield world.uniform(1, 30)
        self.has_built = True
        self.group.begin()

    def _serve(self):
        self.is_serving = True
        while not self.is_dismissed:
            phase = "evaluate" if self.id.is_evaluator else "serve"
            self.report(Phase(phase, self.world.saved()))
            yield 20
            if self.id.is_evaluator and self.world.has_left == DONE:
                break
        self.exit(DONE)


class Group:
    """Processes that train together, one step after the other."""

    def __init__(self, world, members):
        self.world, self.members = world, members
        self.step = 0
        self.is_lost = self.has_begun = False
        for member in members:
            member.group = self
        self._work = self._train()

    def begin(self):
        """Restore the newest state when all have built and may begin."""
        if not self.has_begun and all(x.begun is not None and x.has_built for x in self.members):
            self.has_begun = True
            self.world.training = self
            self._go_on()

    def lose(self, lost):
        """Let the others find out that one has ended; not if all have finished."""
        if lost.result is None:
            self.part()

    def part(self):
        """Let them lose one another."""
        self.is_lost = True
        for member in self.members:
            if member.is_alive and member.result is None:
                self.world.later(self.world.uniform(0, 20), member.do, member.exit, RESTARTABLE)

    def _go_on(self):
        """Go on when all members can."""
        for member in self.members:
            if self.is_lost or member.is_killed:
                return
            if member.frozen:
                member.do(self._go_on)
                return
        if (secs := next(self._work, None)) is not None:
            self.world.later(secs, self._go_on)

    def _train(self):
        world = self.world
        self._restore()
        while self.step < LAST_STEP:
            if any(member.stop_number for member in self.members):
                yield from self._save()
                self._leave(None)
                return
            self._report("train")
            yield world.uniform(0, 20)
            while not world.are_served(self.members[0].attempt):
                yield 1
            self.step += 1
            self._remember()
            if self.step % 3 == 0 or any(member.is_saving for member in self.members):
                yield from self._save()
            elif world.random.random() < 0.2:
                self._report("evaluate")
                yield world.uniform(0, 20)
        yield from self._save()
        self._leave(DONE)

    def _restore(self):
        seen = [self.world.saved()]
        for member in self.members:
            for name in member.begun:
                if memory := member.memories.get(name):
                    seen.append(memory.position.step if memory.position else 0)
        self.step = max(seen)
        kept = max(member.command.kept() for member in self.members)
        assert self.step == max(kept, self.world.saved()), "not the newest state"

    def _remember(self):
        for member in self.members:
            if memory := member.memories.get(str(member.id)):
                memory.position = Position(self.step, self.step)

    def _save(self):
        self._report("save")
        for member in self.members:
            member.is_saving = False
        yield self.world.uniform(0, 10)
        if self.world.is_full:
            self.members[0].crash(CRASHED, "the disk is full")
            yield
        self.world.steps.add(self.step)

    def _leave(self, code):
        if code == DONE:
            self.world.has_left = DONE
        for member in self.members:
            member.result = 128 + (member.stop_number or signal.SIGTERM) if code is None else code
            self.world.later(self.world.uniform(0, 5), member.do, member.exit, member.result)

    def _report(self, phase):
        for member in self.members:
            member.report(Phase(phase, self.step))


class World:
    """A run: its hosts, commands, processes and files, and what goes wrong.

    These hold after every event, or an AssertionError says which does not: never may processes of
    two attempts write; a restart continues from the newest whole state; what was saved stays;
    everything ends within a time; a command leaves no process and no memory behind; its exit code
    is true; no more restarts than allowed come without newer state.

    Attributes:
        events: how many the supervisors have handled.
    """

    def __init__(self, seed, faults, layout=None):
        self.random = random.Random(seed)
        self.uniform = self.random.uniform
        self.layout = layout or self.random.choice(LAYOUTS)
        self.experiment = composed(*self.layout.options, *self.random.choice(OPTIONS))
        self.ids = [ProcessId(name[:-2], int(name[-1])) for name in self.layout.names]
        strategy = self.layout.strategy
        self.servers = {x for x in self.ids if x.is_beside or x.job in strategy.service_jobs}
        self.now, self.events, self.refusals = 0.0, 0, 0
        self.steps, self.is_full, self.has_left = set(), False, None
        self.alive, self.meeting, self.commands = {}, {}, {}
        self._queue, self._numbers = [], itertools.count()
        self.training = None
        self.groups, self.cut_off, self.asked = [], set(), set()
        self._touches = self._tries = self._running = 0
        self._repeats, self._starts = self.random.choice([0, 1, 3]), len(self.hosts)
        self._sudden = {fault.at: fault for fault in faults if isinstance(fault.at, int)}
        for fault in faults:
            if not isinstance(fault.at, int):
                self.later(fault.at, self.inflict, fault)
        self.most_secs = FAILURE_SECS * (len(faults) + 2)
        for host in self.hosts:
            self.later(0, self._start, host)

    @property
    def hosts(self):
        return [x for x in self.ids if not x.is_beside] if self.layout.are_apart else [self.ids[0]]

    def run(self):
        """Play until all commands have ended; return the world."""
        while self._starts or self._running:
            assert self._queue, "somebody waits for ever"
            self.now, _, function, arguments = heapq.heappop(self._queue)
            assert self.now < self.most_secs, "it takes too long"
            function(*arguments)
        return self

    def later(self, secs, function, *arguments):
        heapq.heappush(self._queue, (self.now + secs, next(self._numbers), function, arguments))

    def step(self):
        """Return the step in which the training is; 0: there is none."""
        if self.has_left == DONE:
            return LAST_STEP
        return self.training.step if self.training and not self.training.is_lost else 0

    def saved(self):
        """Return the step of the newest checkpoint; 0: none."""
        return max(self.steps, default=0)

    def members(self, host):
        """Return the processes of an attempt on a host."""
        if self.layout.are_apart:
            beside = [x for x in self.ids if x.is_beside and host == self.ids[0]]
            jobs = {"worker": [f"{x}:1" for x in self.hosts]}
            return [Cluster(host, jobs, TF_CONFIG), *map(Cluster, beside)]
        count = len(self.ids)
        return self.clusters(self.ids[: self.random.randint(self.layout.least or count, count)])

    def clusters(self, ids):
        jobs = {}
        for process_id in ids:
            if len(self.ids) > 1 and not process_id.is_beside:
                jobs.setdefault(process_id.job, []).append(f"{process_id}:1")
        return [Cluster(x, {} if x.is_beside else jobs) for x in ids]

    def are_served(self, attempt):
        """Return whether all servers of an attempt serve."""
        serving = [x.id for x in self.alive if x.is_serving and x.attempt is attempt]
        return all(x in serving or x.is_beside for x in self.servers)

    def are_connected(self, one, other):
        return (one.command.host in self.cut_off) == (other.command.host in self.cut_off)

    def meet(self, process):
        """Let processes train together when all have come."""
        found = [process.meeting.get(x) for x in process.needed]
        if all(x and self.are_connected(x, process) for x in found):
            if self.are_served(process.attempt):
                for other in found:
                    del process.meeting[other.id]
                self.groups.append(Group(self, found))

    def is_listening(self, asking, address):
        """Return whether the process of an address accepts connections from a command."""
        is_cut_off = asking.host in self.cut_off
        return any(
            f"{x.id}:1" == address and (x.command.host in self.cut_off) == is_cut_off
            for x in (*self.meeting.values(), *(y for z in self.groups for y in z.members))
            if x.is_alive
        )

    def _start(self, host):
        """Let the user type the command, again if the run is still in use."""
        if self.has_left == DONE and self.saved() == LAST_STEP:
            self._starts -= 1
            return
        if any(x.command.host == host and x.attempt for x in self.alive):
            self._tries += 1
            if self._tries < 20:
                self.later(30, self._start, host)
            else:
                self._starts -= 1
            return
        self._starts -= 1
        self._running += 1
        self.commands[host] = Command(self, host)
        self.commands[host].switch()

    def end(self, command):
        """Take the end of a command: its processes follow, and the user may repeat it."""
        self._running -= 1
        for process in self.alive:
            if process.command is command:
                self.later(self.uniform(0, 1), process.kill_by_anyone)
        if command.code != DONE and self._repeats:
            self._repeats -= 1
            self._starts += 1
            self.later(self.uniform(1, 60), self._start, command.host)

    def touch(self):
        """Count a call of a supervisor, in the middle of which a fault may come."""
        self._touches += 1
        if fault := self._sudden.pop(self._touches, None):
            self.inflict(fault)

    def inflict(self, fault):
        running = [x for x in self.alive if x.is_running]
        commands = [x for x in self.commands.values() if x.code is None and not x.is_killed]
        if fault.kind in ON_PROCESSES and running:
            ON_PROCESSES[fault.kind](running[fault.target % len(running)], self.uniform(0, 600))
        elif fault.kind in ON_COMMANDS and commands:
            ON_COMMANDS[fault.kind](commands[fault.target % len(commands)])
        elif fault.kind == "refuse":
            self.refusals += 1 + fault.target % 3
        elif fault.kind == "fill":
            self.is_full = True
            self.later(self.uniform(0, 60), setattr, self, "is_full", False)
        elif fault.kind == "part" and self.layout.are_apart and not self.cut_off:
            self.cut_off = set(self.random.sample(self.hosts, len(self.hosts) // 2))
            self.later(self.uniform(5, 60), self._lose_contact)
            self.later(self.uniform(0, 200), self.cut_off.clear)

    def _lose_contact(self):
        for group in self.groups:
            if any(not self.are_connected(x, group.members[0]) for x in group.members):
                group.part()


def _term(process, secs):
    process.world.asked.add(signal.SIGTERM)
    process.request(signal.SIGTERM)
    process.report(SignalReceived(signal.SIGTERM))


def _stop_machine(command):
    command.requests.request(signal.SIGTERM)
    for process in command.processes:
        if process.is_running:
            _term(process, 0)


def _disturb(process, delay, copies):
    process.delay, process.copies = delay, copies


ON_PROCESSES = {
    "crash": lambda process, secs: process.crash(CRASHED, "an error"),
    "refuse input": lambda process, secs: process.crash(WRONG_INPUT, "a wrong value"),
    "kill": lambda process, secs: process.kill_by_anyone(),
    "hang": lambda process, secs: process.freeze("hang"),
    "stop": lambda process, secs: process.freeze("stop", secs),
    "slow": lambda process, secs: process.freeze("slow", secs),
    "stick": lambda process, secs: process.freeze("stick", secs if secs < 300 else None),
    "term": _term,
    "late": lambda process, secs: _disturb(process, secs / 20, 1),
    "double": lambda process, secs: _disturb(process, 0, 2),
}
ON_COMMANDS = {
    "end": lambda command: command.requests.request(signal.SIGTERM),
    "interrupt": lambda command: command.requests.request(signal.SIGINT),
    "save": lambda command: command.requests.request(signal.SIGUSR1),
    "stop machine": _stop_machine,
    "kill command": Command.kill,
}
KINDS = (*ON_PROCESSES, *ON_COMMANDS, "refuse", "fill", "part")


@functools.cache
def composed(*options):
    return compose(list(options))


def drawn(seed):
    """Return the faults of a schedule."""
    draw = random.Random(seed + (1 << 40))
    faults = []
    for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 5])):
        at = draw.randrange(200) if draw.random() < 0.3 else draw.uniform(0, 300)
        faults.append(Fault(draw.choice(KINDS), at, draw.randrange(12)))
    return faults


def _examine(processes, logs):
    getcurrent().touch()
    stopped = [x for x, process in processes.items() if process.is_stopped()]
    return stopped, {x: "" for x in processes if x not in stopped}


def simulated():
    """Return a context in which supervisors live in the world of their command."""
    return mock.patch.multiple(
        supervisor,
        time=SimpleNamespace(monotonic=lambda: getcurrent().world.now),
        queue=SimpleNamespace(SimpleQueue=Inbox, Empty=queue.Empty),
        discovery=SimpleNamespace(local_clusters=lambda ids: getcurrent().world.clusters(ids)),
        available_bytes=lambda: 1_000_000,
        visible_gpus=list,
        examine=_examine,
        is_listening=lambda address: getcurrent().world.is_listening(getcurrent(), address),
        committed_steps=lambda folder: sorted(getcurrent().world.steps),
        StateMemory=Memory,
    )


def failure(seed, faults):
    """Return how a schedule breaks a rule, or None."""
    try:
        with simulated():
            World(seed, faults).run()
    except Exception as error:
        return error
    return None


def shrunk(seed, faults):
    """Return the faults without those that a broken rule does not need."""
    for fault in faults:
        fewer = [other for other in faults if other is not fault]
        if failure(seed, fewer):
            return shrunk(seed, fewer)
    return faults


def play(seeds):
    """Play schedules; raise an AssertionError with the first that breaks a rule."""
    for seed in seeds:
        faults = drawn(seed)
        if error := failure(seed, faults):
            raise AssertionError(f"World({seed}, {shrunk(seed, faults)}): {error!r}") from error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    arguments = parser.parse_args()
    began = time.perf_counter()
    play(range(arguments.seed, arguments.seed + arguments.schedules))
    secs = time.perf_counter() - began
    print(f"{arguments.schedules:,} schedules, {arguments.schedules / secs:,.0f} a second: all rules hold")


if __name__ == "__main__":
    main()
