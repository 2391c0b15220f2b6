"""What a supervisor touches, simulated: a command on a host, its processes, messages and memories.

A command is a coroutine. It runs until the supervisor waits; then the world of `tests.simulate`
continues, in its own time.
"""

import queue
import signal
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from greenlet import getcurrent, greenlet

from trainer.cluster import messages
from trainer.cluster.messages import Exit, Phase, SignalReceived
from trainer.cluster.signals import SAVES, StopRequests
from trainer.cluster.spec import Cluster
from trainer.errors import CRASHED, DONE, WRONG_INPUT, StorageError
from trainer.launch import supervisor
from trainer.launch.run_context import Command as Typed
from trainer.launch.run_context import RunContext

LAST_STEP = 10


class Killed(BaseException):
    """The command was killed; what it does on its way out has no effect."""


class Command(greenlet):
    """A command on a host: the supervisor, which runs until it waits; then the world continues.

    Attributes:
        is_killed: by SIGKILL; its processes end by themselves.
        told: the errors that it has printed.
        asked: when it was first asked to stop.
        owed: the step in which the training was then; 0: there was none.
        had: that, or the step of the newest state.
    """

    def __init__(self, world, host):
        super().__init__(self._supervise)
        self.world, self.host = world, host
        self.code, self.asked, self.owed, self.had = None, float("inf"), 0, 0
        self.is_killed = self._is_asleep = False
        self.told, self.processes, self.memories = [], [], []
        self.requests = Requests(self, is_attended=world.random.random() < 0.5)
        self._naps = self._refused = 0
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
            self._refused += 1
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
                counted = self._restarts + self._refused  # a process that was not started, too
                assert counted >= world.experiment.restart.max_restarts, "it gave up early"
        elif code == DONE:
            assert world.has_left == DONE, "it is not done"
            assert self.asked == float("inf") or self.had >= LAST_STEP - 2, "it does not stop"
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
        """Let the world continue until `wake` is called, or for so long."""
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
            command.had = max(command.owed, command.newest())
            command.asked = min(command.asked, command.world.now)

    def decide(self, request, source=None):
        self._note(request)
        decision = super().decide(request, source)
        if self.number:
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

    def _ignore(self, *arguments):
        pass

    begin = end = update = _ignore


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
        assert not is_standby or experiment.restart.standby != "never", "started ahead"
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
        if self.world.listening.get(f"{self.id}:1") is self:
            del self.world.listening[f"{self.id}:1"]
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
        world.listening[f"{self.id}:1"] = self
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
