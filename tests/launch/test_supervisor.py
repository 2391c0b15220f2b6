"""How often a run is restarted, its standby and its memories; the processes are simulated."""

import itertools
import os
import signal
from types import SimpleNamespace

import pytest

from tests.support.terminal import FakeTerminal
from trainer.cli.compose import compose
from trainer.cluster.messages import Begin, Exit, Phase, SignalReceived
from trainer.cluster.signals import SWEEP, StopRequests, forward_to
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import RESTARTABLE
from trainer.launch import supervisor
from trainer.launch.display import Console
from trainer.launch.run_context import Command, RunContext
from trainer.launch.supervisor import Memories, RestartBudget, Supervisor, can_have_standby
from trainer.runs.ledger import Ledger
from trainer.runs.state_memory import Position
from trainer.strategies.select import select_strategy
from trainer.strategies.strategy import Strategy

MEMBER = Cluster()
WORKERS = [ProcessId("worker", number) for number in range(3)]


class FakeProcess:
    """A process; `behave` is called when it takes part."""

    host = None

    def __init__(self, process_id, behave):
        self.process_id = process_id
        self.behave = behave
        self.sent = []
        self.is_standby = False
        self.is_killed = False
        self.left = ""
        self.size = 100

    def assign(self, directory, experiment, member, messages, memories, *, is_standby):
        self.messages = messages
        self.member = member
        self.is_standby = is_standby

    def send(self, message):
        self.sent.append(message)
        if isinstance(message, Begin):
            self.behave(self)

    def put(self, *messages):
        for message in messages:
            self.messages.put((self.process_id, message))

    def signal(self, number):
        pass

    def is_stopped(self):
        return False

    def has_ended(self):
        return self.is_killed

    def resident_bytes(self):
        return self.size

    def kill(self, secs=0.0):
        self.is_killed = True
        return self.left


class Run:
    """A run whose processes behave as a list says, one item for each process in turn.

    Attributes:
        processes: all that were started, in order.
        lines: shown to the user.
        waits: the pauses before restarts.
    """

    def __init__(self, run_dir, monkeypatch):
        (run_dir / "checkpoints").mkdir(exist_ok=True)
        self.run_dir = run_dir
        self.lines = []
        self.waits = []
        self.processes = []
        self.stop_requests = StopRequests()
        monkeypatch.setattr(supervisor, "available_bytes", lambda: 300)
        monkeypatch.setattr(supervisor, "visible_gpus", list)

    def supervise(self, behaviors, *options, members=(MEMBER,), is_patient=False):
        """Run it; return the exit code."""
        console = Console(FakeTerminal(), FakeTerminal())
        console.line = console.error = self.lines.append
        directory = SimpleNamespace(path=self.run_dir, check_lock=lambda: None)
        command = Command(compose(list(options)))
        context = RunContext(command, Strategy(), directory, console, self.stop_requests)
        remaining = iter(behaviors)

        def create(process_id):
            self.processes.append(FakeProcess(process_id, next(remaining)))
            return self.processes[-1]

        self.supervisor = Supervisor(context, lambda: list(members), create, Ledger(self.run_dir))
        wait = self.stop_requests.wait
        self.stop_requests.wait = lambda secs: (
            self.waits.append(secs) or (wait(secs) if is_patient else 0)
        )
        code = self.supervisor.supervise()
        assert not list(remaining)
        return code

    def save(self, *steps):
        for step in steps:
            (self.run_dir / "checkpoints" / f"ckpt-{step}.json").touch()

    def ending(self, code, *steps):
        """Return a behavior: save at some steps, and end with a code."""

        def behave(process):
            self.save(*steps)
            process.put(Exit(code))

        return behave


@pytest.fixture
def run(tmp_path, monkeypatch):
    return Run(tmp_path, monkeypatch)


def test_restarts_end_with_the_budget_and_their_pauses_double(run):
    assert run.supervise([run.ending(code) for code in (-9, RESTARTABLE, -9, -9)]) == 1
    assert run.waits == [0.0, 1.0, 2.0]
    log = run.run_dir / "logs" / "worker-0.log"
    assert run.lines[0] == f"warning: worker-0 was killed by SIGKILL; its log is {log}"
    assert run.lines[-1] == (
        "gave up after 3 restarts (restart.max_restarts): worker-0 was killed by SIGKILL; "
        f"the log is {log}"
    )


def test_budget_is_renewed_by_every_newer_checkpoint(run):
    steps = [(), (), (5,), (), (), (6, 7), (7,), (3,)]
    behaviors = [run.ending(-9, *saved) for saved in steps]
    assert run.supervise([*behaviors, run.ending(0)]) == 0
    assert run.waits == [0.0, 1.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0]


def test_frequent_restarts_of_a_run_that_advances_are_counted_in_a_warning(run):
    behaviors = [run.ending(-9, step) for step in range(1, 6)]
    assert run.supervise([*behaviors, run.ending(0)], "restart.max_restarts=3") == 0
    warnings = [line for line in run.lines if "within an hour" in line]
    assert [line.partition(":")[2].partition(":")[0] for line in warnings] == [
        f" restart {number} of this command, {number} within an hour" for number in (4, 5)
    ]


def test_restarts_of_other_hours_are_not_counted_as_frequent(monkeypatch):
    hours = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * next(hours))
    monkeypatch.setattr(supervisor, "time", clock)
    budget = RestartBudget(itertools.count().__next__, 3)
    assert [(budget.spend(), budget.warning()) for _ in range(9)] == [(True, "")] * 9


@pytest.mark.parametrize("code", [0, 1, 2, 130, 143])
def test_attempt_that_was_neither_killed_nor_lost_peers_is_not_restarted(run, code):
    assert run.supervise([run.ending(code)]) == code
    assert (run.waits, run.lines) == ([], [])


def test_requests_of_a_sweep_and_signals_of_the_user_reach_the_process_once(run):
    def behave(process):
        process.put(Phase("train", 1))
        run.stop_requests.put(SignalReceived(signal.SIGTERM), SWEEP)
        os.kill(os.getpid(), signal.SIGTERM)
        process.put(Exit(143))

    with forward_to(run.stop_requests.request):
        assert run.supervise([behave]) == 143
    assert run.lines == ["SIGTERM to sweep-0: saving, then exiting."]
    assert run.processes[0].sent[1:] == [SignalReceived(signal.SIGTERM)]


def test_stop_request_ends_the_wait_before_a_restart(run):
    def refuse():
        run.stop_requests.request(signal.SIGTERM)  # while the run pauses

    waits = iter([lambda: None, refuse])
    wait = run.stop_requests.wait
    run.stop_requests.wait = lambda secs: (next(waits)(), wait(min(secs, 60.0)))[1]
    assert run.supervise([run.ending(-9)] * 2, "restart.backoff_secs=60", is_patient=True) == 143


def test_pauses_end_at_a_limit_of_five_minutes(run):
    assert run.supervise([run.ending(-9)] * 13, "restart.max_restarts=12") == 1
    assert (run.waits[9], run.waits[10], run.waits[-1]) == (256.0, 300.0, 300.0)
    run.waits.clear()
    longer = ("restart.max_restarts=2", "restart.backoff_secs=400")
    run.supervise([run.ending(-9)] * 3, *longer)
    assert run.waits == [0.0, 400.0]


def test_process_that_does_not_end_when_it_is_killed_is_named_and_left(run):
    def linger(process):
        process.left = "process 123"
        process.put(Phase("save", 3))

    def fail(process):
        process.put(Phase("save", 3), Exit(-9))

    members = [Cluster(process_id) for process_id in WORKERS[:2]]
    run.supervise([linger, fail], "restart.max_restarts=0", members=members)
    assert run.lines[0] == (
        "warning: worker-0 (process 123, phase save) was killed but does not end"
    )


MEMBERS = [
    *(Cluster(process_id, {"worker": ["old:1", "old:2"]}) for process_id in WORKERS[:2]),
    Cluster(ProcessId("evaluator", 0)),
]


@pytest.mark.parametrize(
    ("policy", "size", "has_standby"),
    [("always", 1000, True), ("auto", 149, True), ("auto", 151, False), ("never", 0, False)],
)
def test_restart_takes_the_attempt_that_was_started_ahead(
    run, monkeypatch, policy, size, has_standby
):
    monkeypatch.setattr(supervisor, "_FIRST_SECS", 0.0)
    seen = []

    def first(process):
        process.size = size
        process.put(Phase("train", 1))

    def considered():
        run.processes[0].put(Exit(-9))  # not before
        return 300

    monkeypatch.setattr(supervisor, "available_bytes", considered)
    if policy == "never":
        first = run.ending(-9)
    second = lambda process: (seen.append(process.is_standby), process.put(Exit(0)))  # noqa: E731
    assert run.supervise([first, second], f"restart.standby={policy}") == 0
    assert seen == [has_standby]


def test_standby_has_the_same_processes_at_other_addresses_and_ends_with_the_run(run, monkeypatch):
    def started_ahead():
        for process in run.processes[:3]:
            process.put(Exit(0))
        return 300

    monkeypatch.setattr(supervisor, "available_bytes", started_ahead)
    nothing = lambda process: None  # noqa: E731
    train = lambda process: process.put(Phase("train", 1))  # noqa: E731
    behaviors = [train, *[nothing] * 4]
    assert run.supervise(behaviors, "restart.standby=always", members=MEMBERS) == 0
    ahead = run.processes[3:]
    assert [process.process_id for process in ahead] == WORKERS[:2]
    assert not {"old:1", "old:2"} & set(ahead[0].member.jobs["worker"])
    assert all(process.is_standby and process.is_killed for process in ahead)


def test_processes_that_end_with_a_failed_one_are_shown_as_ended(run, monkeypatch):
    states = {}
    end = lambda console, process_id, state, *detail: states.update({process_id: state})  # noqa: E731
    monkeypatch.setattr(Console, "end", end)
    behaviors = [lambda process: None, run.ending(-9)]
    assert run.supervise(behaviors, "restart.max_restarts=0", members=MEMBERS[:2]) == 1
    assert states == {WORKERS[0]: "ended", WORKERS[1]: "lost"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["strategy=one_device"], True),
        (["strategy=multi_worker"], True),
        (["strategy=parameter_server"], False),
        (["strategy=tpu"], False),
        (["restart.max_restarts=0"], False),
        (["mode=evaluate"], False),
        (["launch=ray", "strategy=multi_worker"], False),
    ],
)
def test_runs_that_can_have_a_standby(monkeypatch, options, expected):
    monkeypatch.setattr(supervisor, "visible_gpus", list)
    assert can_have_standby(_context(options)) == expected


def test_accelerators_and_declared_clusters_have_no_standby(monkeypatch):
    monkeypatch.setattr(supervisor, "visible_gpus", lambda: ["0"])
    assert not can_have_standby(_context(["strategy=one_device"]))
    monkeypatch.setattr(supervisor, "visible_gpus", list)
    declared = Cluster(ProcessId("worker", 0), {"worker": ["a:1", "b:1"]}, "TF_CONFIG")
    assert not can_have_standby(_context(["strategy=multi_worker"], declared))


def _context(options, cluster=None):
    experiment = compose(options)
    return RunContext(
        Command(experiment),
        select_strategy(experiment),
        directory=None,
        console=None,
        stop_requests=None,
        cluster=cluster or Cluster(),
    )


@pytest.fixture
def memories():
    memories = Memories(is_on=True)
    for process_id in WORKERS:
        memories.add(process_id)
    yield memories
    memories.close()


def test_process_that_trains_has_one_memory(memories):
    before = dict(memories)
    for process_id in (*WORKERS, ProcessId("evaluator", 0)):
        memories.add(process_id)
    assert dict(memories) == before
    assert list(before) == WORKERS
    off = Memories(is_on=False)
    off.add(WORKERS[0])
    assert (dict(off), off.newest(), off.newest_step()) == ({}, [], 0)


def test_newest_state_comes_first(memories):
    assert (memories.newest(), memories.newest_step()) == ([], 0)
    # Of the same step, the one that has been reported is the newer.
    for process_id, position in zip(WORKERS, [(7, 5), (6, 6), (7, 7)], strict=True):
        memories[process_id].write(Position(*position), [])
    assert memories.newest() == ["worker-2", "worker-0", "worker-1"]
    assert memories.newest_step() == 7
    memories[WORKERS[2]].clear()
    assert memories.newest() == ["worker-0", "worker-1"]


def test_files_end_with_the_memories(memories):
    files = [memory.fileno() for memory in memories.values()]
    assert all("memfd:steadfast-worker-" in os.readlink(f"/proc/self/fd/{x}") for x in files)
    assert not any(os.get_inheritable(file) for file in files)
    memories.close()
    for file in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)
    assert not memories
