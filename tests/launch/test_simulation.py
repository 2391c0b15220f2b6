"""Attempts in a simulated world: processes that crash, hang or do not die, and a user who stops.

A world is played by one generator of random numbers, so its seed is the whole schedule.
`python -m tests.launch.test_simulation <first> <last>` plays more of them.
"""

import functools
import heapq
import itertools
import random
import sys
from pathlib import Path

import pytest

from trainer.cli.compose import compose
from trainer.cluster.messages import Crash, Dismiss, Exit, Phase, Problem, SignalReceived
from trainer.cluster.signals import SAVES, StopRequests
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import CRASHED, DONE, RESTARTABLE, WRONG_INPUT
from trainer.launch import attempt
from trainer.launch.attempt import NEVER, Attempt
from trainer.strategies.strategy import Strategy

MOST_SECS = 7200.0
"""Within this time every attempt is over: the limits of the watchdog, one after the other."""


class Synchronous(Strategy):
    start_timeout_secs = 60


class Serving(Synchronous):
    service_jobs = restartable_jobs = frozenset({"ps", "worker"})


LAYOUTS = [
    (Synchronous, ["worker-0"]),
    (Synchronous, ["worker-0", "worker-1"]),
    (Synchronous, ["worker-0", "worker-1", "worker-2", "worker-3", "evaluator-0"]),
    (Serving, ["chief-0", "worker-0", "worker-1", "ps-0"]),
    (Serving, ["chief-0", "worker-0", "ps-0", "evaluator-0"]),
]


@functools.cache
def experiment(*options):
    return compose(list(options))


class Process:
    """A process from its start to its end.

    Attributes:
        result: the exit code that it will leave with, once it has nothing left to do.
    """

    def __init__(self, world, process_id):
        self.id = process_id
        self.result = None
        self.is_stopping = self.is_dismissed = self.is_hung = self.is_stuck = False
        self.is_present = False
        self.is_alive = True
        self._world = world
        self._life = self._serve() if process_id in world.servers else self._train()
        self.live()

    def live(self):
        """Go on with its life until it waits for the next time."""
        if self.is_alive and not self.is_hung:
            try:
                self._world.later(next(self._life), self.live)
            except StopIteration as end:
                self.exit(end.value)

    def exit(self, code):
        if self.is_alive:
            self.is_alive = False
            self.send(Exit(code))

    def send(self, message):
        self.is_present = True
        self._world.later(0, self._world.receive, self, message)

    def _serve(self):
        yield self._world.uniform(1, 5)
        while not (self.is_dismissed or (self.id.is_evaluator and self._world.is_done())):
            self.send(Phase("serve", 0))
            yield 20
        return DONE

    def _train(self):
        world = self._world
        yield world.uniform(1, 5)
        if len(world.ids) > 1:
            self.send(Phase("join", 0))
            while not world.are_all_present():
                yield 1
        for phase in ("start", "compile"):
            self.send(Phase(phase, 0))
            yield world.uniform(1, 30)
        code = DONE
        for step in range(1, 10):
            if world.is_stop_agreed(step):
                code = 143
                break
            self.send(Phase(world.choice(["train", "train", "evaluate", "save"]), step))
            yield world.uniform(0, 20)
            if world.has_lost_peer(self):
                yield world.uniform(0, 20)
                return RESTARTABLE
        self.result = code
        while any(process.result is None for process in world.trainers()):
            yield 1
            if world.has_lost_peer(self):
                return RESTARTABLE
        yield world.uniform(0, 5)
        return code


class World:
    """The processes of one attempt, its user, and what goes wrong; played by `run`."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self.uniform, self.choice = self._random.uniform, self._random.choice
        strategy, names = self.choice(LAYOUTS)
        self.ids = [ProcessId(name[:-2], int(name[-1])) for name in names]
        self.servers = {x for x in self.ids if x.is_beside or x.job in strategy.service_jobs}
        jobs = {}
        for process_id in self.ids:
            if len(names) > 1 and not process_id.is_beside:
                jobs.setdefault(process_id.job, []).append(str(process_id))
        self.now = 0.0
        self.is_requested = self.has_told = False
        self.processes, self._known, self._stops = {}, {}, {}
        self._queue, self._numbers = [], itertools.count()
        self._restarts = self.choice([0, 1, 3])
        self._faults = self.choice([0, 1, 1, 2, 3])
        self.attempt = Attempt(
            experiment(*self.choice([[], ["preemption.grace_secs=20"]])),
            strategy(),
            [Cluster(x, {} if x.is_beside else jobs) for x in self.ids],
            StopRequests(is_attended=self.choice([False, True])),
            Path("run"),
            self.choice([NEVER, 2.0]),
        )
        for _ in range(self.choice([0, 0, 1, 2, 3])):
            self.later(self.uniform(0, 200), self.signal, None, self.choice([2, 15, 15, 10]))

    def later(self, secs, function, *arguments):
        heapq.heappush(self._queue, (self.now + secs, next(self._numbers), function, arguments))

    def trainers(self):
        return [x for x in self.processes.values() if x.id not in self.servers]

    def are_all_present(self):
        present = [x.id for x in self.processes.values() if x.is_present]
        return all(x in present for x in self.ids if not x.is_beside)

    def has_lost_peer(self, process):
        return any(not x.is_alive and x.result is None for x in self.trainers() if x is not process)

    def is_stop_agreed(self, step):
        """Return what the first process that came to a step has decided for all of them."""
        return self._stops.setdefault(step, any(x.is_stopping for x in self.trainers()))

    def is_done(self):
        chief = self.processes[self.ids[0]]
        return chief.result == DONE and not chief.is_alive

    def signal(self, source, number):
        self.is_requested = self.is_requested or number not in SAVES
        self._handle(attempt.Received(source, SignalReceived(number)))

    def receive(self, process, message):
        if self._known.get(process.id) is process:
            if isinstance(message, Exit):
                del self._known[process.id]
            self._handle(attempt.Received(process.id, message))

    def run(self):
        """Play until the attempt is over; check what must hold."""
        self._handle(attempt.Begin())
        while not self.attempt.is_over:
            at = min([self.attempt.due_at, *(item[0] for item in self._queue[:1])])
            assert at < MOST_SECS
            self.now = max(self.now, at)
            if self.attempt.due_at <= self.now:
                self._handle(attempt.Tick())
            else:
                _, _, function, arguments = heapq.heappop(self._queue)
                function(*arguments)
        code, failure = self.attempt.code, self.attempt.failure
        chief = self.processes.get(self.ids[0])
        if code in (DONE, 130, 143):
            assert failure is None
            assert code == DONE or self.is_requested
            assert chief is None or chief.result in ([143, None] if code else [DONE])
        else:
            assert failure is not None or (code == CRASHED and self.has_told)

    def _handle(self, event):
        for action in self.attempt.handle(event, self.now):
            if answer := self._perform(action):
                self._handle(answer)

    def _perform(self, action):
        match action:
            case attempt.Restart(process_id, code) if not self._restarts:
                return attempt.Refused(process_id, code)
            case attempt.Start(process_id) | attempt.Restart(process_id):
                self._restarts -= isinstance(action, attempt.Restart)
                return self._start(process_id)
            case attempt.Send(process_id, message):
                process = self._known[process_id]  # it has not ended, as far as is known
                process.is_dismissed = process.is_dismissed or isinstance(message, Dismiss)
                process.is_stopping = process.is_stopping or (
                    isinstance(message, SignalReceived) and message.number not in SAVES
                )
            case attempt.SendSignal(name, 9):
                for process in self._known.values():
                    if str(process.id) == name and not process.is_stuck:
                        self.later(self.uniform(0, 1), process.exit, -9)
            case attempt.Examine():
                return attempt.Examined([], dict.fromkeys(self._known, ""))
            case attempt.Probe():
                return attempt.Listening([])
            case attempt.ShowUnsaved():
                self.has_told = True
        return None

    def _start(self, process_id):
        assert process_id not in self._known
        if self._faults and self.choice([False] * 9 + [True]):
            self._faults -= 1
            return attempt.NotStarted(process_id, "no memory")
        self.processes[process_id] = self._known[process_id] = process = Process(self, process_id)
        if self._faults and self.choice([False, True]):
            self._faults -= 1
            fault = self.choice([self._crash, self._kill, self._hang, self._hang, self._stop])
            self.later(self.uniform(0, 150), fault, process)
        return None

    def _crash(self, process):
        code = self.choice([CRASHED, WRONG_INPUT])
        process.send(Crash("why", "why") if code == CRASHED else Problem(["why"]))
        process.exit(code)

    def _kill(self, process):
        process.exit(-9)

    def _hang(self, process):
        process.is_hung = True
        process.is_stuck = self.choice([False, True])  # in the kernel, where no signal ends it

    def _stop(self, process):
        if self._known.get(process.id) is process:
            self.signal(process.id, 15)


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_attempts_end_and_their_exit_codes_are_true(first):
    play(first, first + 500)


def play(first, last):
    for seed in range(first, last):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"schedule {seed}") from error


if __name__ == "__main__":
    play(*map(int, sys.argv[1:]))
