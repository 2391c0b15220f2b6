"""A simulation of failures: the real supervisor in a world of processes, hosts and a clock.

    python -m tests.simulate --schedules 100000 --seed 0
    python -m tests.simulate --hosts 1 2 16 1000

Each host has a command, which is the real `Supervisor` with its `Attempt`; what it starts, waits
for, reads and prints is simulated here. A seed draws the layout, how long everything takes, and a
schedule of faults. After each event the world checks what must hold; see `World`. A schedule that
breaks a rule is printed without the faults that it breaks it without.
"""

import argparse
import functools
import heapq
import itertools
import random
import signal
import sys
import time
from typing import NamedTuple

from tests.launch.simulated import LAST_STEP, Command, simulated
from trainer.cli.compose import compose
from trainer.cluster.messages import Phase, SignalReceived
from trainer.cluster.spec import TF_CONFIG, Cluster, ProcessId
from trainer.errors import CRASHED, DONE, RESTARTABLE, WRONG_INPUT
from trainer.runs.state_memory import Position
from trainer.strategies.strategy import Strategy

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
    Layout(
        ("worker-0", "worker-1", "worker-2"),
        options=("launch=ray", "strategy=multi_worker"),
        least=1,
    ),
)

OPTIONS = (
    (),
    ("restart.standby=never",),
    ("preemption.grace_secs=20",),
    ("restart.max_restarts=1",),
    ("restart.max_restarts=0",),
    ("restart.standby=always",),
    ("checkpoint.memory=never",),
)


def _parts(name):
    job, _, index = name.rpartition("-")
    return job, int(index)


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
            self.world.note()
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
        probes: how often they have tried to connect to a process of another host.
        ended: the commands that have ended; the user has repeated some.
        notes: the time, events and probes at each fault, and when training has begun or goes on.
    """

    def __init__(self, seed, faults, layout=None, options=None):
        self.random = random.Random(seed)
        self.uniform = self.random.uniform
        self.layout = layout or self.random.choice(LAYOUTS)
        drawn_options = self.random.choice(OPTIONS)
        options = drawn_options if options is None else options
        self.experiment = composed(*self.layout.options, *options)
        self.ids = [ProcessId(*_parts(name)) for name in self.layout.names]
        strategy = self.layout.strategy
        self.servers = {x for x in self.ids if x.is_beside or x.job in strategy.service_jobs}
        self.now, self.events, self.probes, self.refusals = 0.0, 0, 0, 0
        self.steps, self.is_full, self.has_left = set(), False, None
        self.alive, self.meeting, self.commands = {}, {}, {}
        self._queue, self._numbers = [], itertools.count()
        self.training, self.ended, self.listening, self.notes = None, [], {}, []
        self.jobs = {"worker": [f"{x}:1" for x in self.hosts]}
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
        """Return the step of the training, or 0 if it has not begun."""
        if self.has_left == DONE:
            return LAST_STEP
        training = self.training
        is_over = not training or training.is_lost or any(x.is_killed for x in training.members)
        return 0 if is_over else training.step

    def saved(self):
        """Return the step of the newest checkpoint; 0: none."""
        return max(self.steps, default=0)

    def members(self, host):
        """Return the processes of an attempt on a host."""
        if self.layout.are_apart:
            beside = [x for x in self.ids if x.is_beside and host == self.ids[0]]
            return [Cluster(host, self.jobs, TF_CONFIG), *map(Cluster, beside)]
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
        """Return whether the hosts of two commands reach each other."""
        return (one.host in self.cut_off) == (other.host in self.cut_off)

    def meet(self, process):
        """Let processes train together when all have come."""
        found = [process.meeting.get(x) for x in process.needed]
        command = process.command
        are_here = all(x and self.are_connected(x.command, command) for x in found)
        if are_here and self.are_served(process.attempt):
            for other in found:
                del process.meeting[other.id]
            self.groups.append(Group(self, found))

    def is_listening(self, asking, address):
        """Return whether the process of an address accepts connections from a command."""
        self.probes += 1
        process = self.listening.get(address)
        return process is not None and self.are_connected(process.command, asking)

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
        self.ended.append(command)
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

    def note(self):
        """Note the time and what has happened so far."""
        self.notes.append((self.now, self.events, self.probes))

    def inflict(self, fault):
        self.note()
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
            first = group.members[0].command
            if any(not self.are_connected(x.command, first) for x in group.members):
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
    # Within the least time from its first message to its first step: it is a local socket.
    "late": lambda process, secs: _disturb(process, secs / 300, 1),
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
        at = int(200 * draw.random() ** 2) if draw.random() < 0.3 else draw.uniform(0, 300)
        faults.append(Fault(draw.choice(KINDS), at, draw.randrange(12)))
    return faults


def failure(seed, faults):
    """Return how a schedule breaks a rule, or None."""
    try:
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
    """Play schedules; return the first that breaks a rule, shrunk, and the rule; or None."""
    with simulated():
        for seed in seeds:
            faults = drawn(seed)
            if error := failure(seed, faults):
                return f"World({seed}, {shrunk(seed, faults)}): {error!r}"
    return None


def print_restart(num_hosts):
    """Print a row of a table: what the loss of a worker costs with so many hosts."""
    names = tuple(f"worker-{index}" for index in range(num_hosts))
    layout = Layout(names, are_apart=True, options=("restart.standby=never",))
    with simulated():
        world = World(0, [Fault("kill", 100.0, num_hosts // 2)], layout, options=()).run()
    _, (lost_at, events, probes), (trains_at, all_events, all_probes) = world.notes
    num_messages = (all_events - events) / num_hosts
    secs = trains_at - lost_at
    print(f"| {num_hosts:,} | {num_messages:.0f} | {all_probes - probes:,} | {secs:.0f} s |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--hosts", type=int, nargs="+", help="print what grows with the hosts")
    arguments = parser.parse_args()
    if arguments.hosts:
        for num_hosts in arguments.hosts:
            print_restart(num_hosts)
        return
    began = time.perf_counter()
    if broken := play(range(arguments.seed, arguments.seed + arguments.schedules)):
        sys.exit(broken)
    rate = arguments.schedules / (time.perf_counter() - began)
    print(f"{arguments.schedules:,} schedules, {rate:,.0f} a second: all rules hold")


if __name__ == "__main__":
    main()
