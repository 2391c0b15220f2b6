"""An attempt with simulated processes: which one is blamed, what a signal does, and timeouts."""

import signal
from types import SimpleNamespace

import pytest

from tests.support.terminal import FakeTerminal
from trainer.cli.compose import compose
from trainer.cluster.messages import Crash, Exit, Phase, Problem, SignalReceived
from trainer.cluster.spec import Cluster, ProcessId
from trainer.cluster.stop_requests import StopRequests
from trainer.errors import CRASHED, RESTARTABLE, WRONG_INPUT
from trainer.launch.display import Console
from trainer.launch.run_context import Command, RunContext
from trainer.launch.supervision import attempt, watchdog
from trainer.launch.supervision.attempt import Attempt
from trainer.launch.supervision.memories import Memories
from trainer.strategies.strategy import Strategy

PHASE, EXIT, SIGNAL, CRASH, PROBLEM = "phase", "exit", "signal", "crash", "problem"


class ServingStrategy(Strategy):
    """Its ps processes serve, and may be restarted alone."""

    service_jobs = frozenset({"ps"})
    restartable_jobs = frozenset({"ps"})


class Simulation:
    """An attempt whose processes send the messages of a script once all have started.

    Attributes:
        states: process name -> its last state on the console.
        lines, errors: shown to the user.
        requests: (process name, signal) of each forwarded request.
        killed: (process name, signal) of each signal sent.
        stopped: names of the processes that are stopped (SIGSTOP).
        ahead: names of the processes that were assigned as a standby's.
        begun: names of the processes that may take part.
        left: process name -> what does not end though it is killed.
    """

    def __init__(
        self,
        directory,
        names,
        script,
        *options,
        strategy=None,
        jobs=None,
        may_replace=True,
        is_attended=False,
    ):
        self.names = names
        self.directory = directory
        self.script = script
        self.processes = {}
        self.states = {}
        self.lines = []
        self.errors = []
        self.requests = []
        self.killed = []
        self.stopped = set()
        self.ahead = []
        self.begun = []
        self.left = {}
        process_ids = [ProcessId(name.split("-")[0], int(name.split("-")[1])) for name in names]
        self.stop_requests = StopRequests(is_attended=is_attended)
        context = RunContext(
            Command(compose(list(options))),
            strategy or Strategy(),
            SimpleNamespace(path=directory),
            RecordingConsole(self.states, self.lines, self.errors),
            self.stop_requests,
        )
        members = [Cluster(process_id, jobs or {}) for process_id in process_ids]
        self.attempt = Attempt(
            context,
            members,
            lambda process_id: self.new_process(process_id),
            lambda process_id: may_replace,
            Memories(is_on=False),
            attempt.Standby("never", lambda members: None),
        )

    def new_process(self, process_id):
        return FakeProcess(self)

    def run(self):
        with self.stop_requests.waking(self.attempt.wake):
            return self.attempt.run()

    def play(self):
        script = self.script
        self.script = []
        for name, kind, value in script:
            if name == "supervisor":
                self.stop_requests.request(value)
            else:
                self.processes[name].send(kind, value)

    @property
    def blamed(self):
        """The name of the process that is blamed, and how it ended."""
        failure = self.attempt.failure()
        return failure.process, failure.end


class RecordingConsole(Console):
    """Keeps the state of each process."""

    def __init__(self, states, lines, errors):
        super().__init__(FakeTerminal(), FakeTerminal())
        self.states = states
        self.line = lines.append
        self.error = errors.append

    def begin(self, process_id, host):
        self.states[str(process_id)] = "starting"

    def update(self, process_id, message):
        self.states[str(process_id)] = message.phase

    def end(self, process_id, state, detail=""):
        self.states[str(process_id)] = f"{state}: {detail}" if detail else state


class FakeProcess:
    host = None

    def __init__(self, simulation):
        self.simulation = simulation

    has_died = False

    def begin(self, processes):
        self.simulation.begun.append(str(self.process_id))

    def has_ended(self):
        return self.has_died

    def assign(self, directory, experiment, member, messages, memories, *, is_standby):
        if is_standby:
            self.simulation.ahead.append(str(member.process_id))
        self.process_id = member.process_id
        self.messages = messages
        self.simulation.processes[str(member.process_id)] = self
        if len(self.simulation.processes) == len(self.simulation.names):
            self.simulation.play()

    def send(self, kind, value):
        message = {
            PHASE: lambda: Phase(value, 7),
            PROBLEM: lambda: Problem([value]),
            EXIT: lambda: Exit(value),
            SIGNAL: lambda: SignalReceived(value),
            CRASH: lambda: Crash(f"Traceback ...\n{value}", value),
        }[kind]()
        self.messages.put((self.process_id, message))

    def request(self, number):
        self.simulation.requests.append((str(self.process_id), number))

    def signal(self, number):
        self.simulation.killed.append((str(self.process_id), number))
        self.send(EXIT, -number)

    def is_stopped(self):
        return str(self.process_id) in self.simulation.stopped

    def leave(self):
        self.send(EXIT, 0)

    def discard(self, secs):
        return self.simulation.left.get(str(self.process_id), "")


TWO = ["worker-0", "worker-1"]
TRAINING = [(name, PHASE, "train") for name in TWO]


@pytest.fixture
def simulate(tmp_path, monkeypatch):
    monkeypatch.setattr(attempt, "_CAUSE_SECS", 0.05)
    monkeypatch.setattr(watchdog, "_stacks", lambda processes, logs: {})
    return lambda *arguments, kind=Simulation, **options: kind(tmp_path, *arguments, **options)


def test_stop_request_is_answered_while_processes_are_being_started(simulate):
    simulation = simulate([f"worker-{number}" for number in range(257)], [])
    start = simulation.new_process

    def start_slowly(process_id):
        if process_id.index == 3:
            simulation.stop_requests.request(signal.SIGTERM)
        return start(process_id)

    simulation.attempt._living._start = start_slowly
    assert simulation.run() == 128 + signal.SIGTERM
    assert len(simulation.processes) == 4
    assert set(simulation.states.values()) == {"ended"}


def test_attempt_that_was_started_ahead_shows_and_begins_nothing_until_it_runs(simulate):
    names = [*TWO, "evaluator-0"]
    simulation = simulate(names, [])
    simulation.attempt.prepare()
    assert simulation.ahead == TWO
    for name in TWO:
        simulation.processes[name].send(PHASE, "compile")
    assert (simulation.begun, simulation.states) == ([], {})
    simulation.script = [(name, EXIT, 0) for name in names]
    assert simulation.run() == 0
    assert simulation.begun == names
    assert simulation.ahead == TWO
    assert simulation.states == dict.fromkeys(names, "done")


def test_attempt_that_was_started_ahead_is_usable_while_all_its_processes_live(simulate):
    simulation = simulate(TWO, [])
    process_ids = [ProcessId("worker", 0), ProcessId("worker", 1)]
    simulation.attempt.prepare()
    assert simulation.attempt.is_usable(process_ids)
    assert not simulation.attempt.is_usable(process_ids[:1])  # an elastic cluster has shrunk
    simulation.processes["worker-1"].has_died = True
    assert not simulation.attempt.is_usable(process_ids)


@pytest.mark.parametrize(
    ("ends", "process", "how", "code"),
    [
        ([("worker-0", RESTARTABLE), ("worker-1", -9)], "worker-1", "was killed by SIGKILL", -9),
        (
            [("worker-0", RESTARTABLE), ("worker-1", RESTARTABLE)],
            "worker-0",
            "lost its peers",
            RESTARTABLE,
        ),
        ([("worker-0", RESTARTABLE), ("worker-1", 1)], "worker-1", "failed", 1),
    ],
)
def test_attempt_blames_the_cause_and_not_a_process_that_lost_a_peer(
    simulate, ends, process, how, code
):
    simulation = simulate(TWO, [*TRAINING, *((name, EXIT, end) for name, end in ends)])
    assert simulation.run() == code
    assert simulation.blamed == (process, how)


@pytest.mark.parametrize(
    ("script", "states"),
    [
        ([*TRAINING, ("worker-0", EXIT, 0), ("worker-1", EXIT, 0)], ["done", "done"]),
        (
            [*TRAINING, ("worker-0", EXIT, RESTARTABLE), ("worker-1", EXIT, -9)],
            ["left: lost its peers", "lost: was killed by SIGKILL"],
        ),
        ([*TRAINING, ("worker-0", EXIT, 1)], ["failed", "ended"]),
        ([*TRAINING, ("worker-0", EXIT, 143), ("worker-1", EXIT, 143)], ["stopped", "stopped"]),
    ],
)
def test_console_shows_how_each_process_ended(simulate, script, states):
    simulation = simulate(TWO, script)
    simulation.run()
    assert simulation.states == dict(zip(TWO, states, strict=True))
    is_good = set(states) <= {"done", "stopped"}
    assert (simulation.attempt.failure() is None) == is_good


@pytest.mark.parametrize(
    ("stopped", "how", "state"),
    [
        ([], "made no progress", ")"),
        (
            ["worker-1"],
            "was stopped by a signal",
            "; it is stopped by a signal, and cannot show its stacks)",
        ),
    ],
)
def test_stall_ends_the_attempt_and_blames_the_hung_process(simulate, stopped, how, state):
    simulation = simulate(
        TWO, [("worker-1", PHASE, "train"), ("worker-0", PHASE, "train")], "watchdog.stall_secs=0.1"
    )
    simulation.stopped.update(stopped)
    assert simulation.run() == RESTARTABLE
    assert simulation.blamed == ("worker-1", how)
    assert (
        simulation.lines[0] == "warning: worker-1 makes no progress: train at step 7, for 0 s "
        f"(watchdog.stall_secs{state}"
    )
    assert simulation.lines[1] == "  worker-0: train at step 7, for 0 s"
    assert simulation.states == {"worker-0": "ended", "worker-1": "stalled"}


def test_hung_server_is_restarted_alone(simulate):
    simulation = simulate(
        ["worker-0", "ps-0"],
        [("worker-0", PHASE, "train"), ("ps-0", PHASE, "serve")],
        "watchdog.stall_secs=0.2",
        strategy=ServingStrategy(),
    )
    simulation.stopped.add("ps-0")
    begin_process = simulation.attempt._begin

    def begin(member):
        if "ps-0" in simulation.processes:  # the second
            simulation.stopped.clear()
            simulation.script = [("worker-0", EXIT, 0)]
        begin_process(member)

    simulation.attempt._begin = begin
    assert simulation.run() == 0
    assert simulation.killed == [("ps-0", signal.SIGKILL)]
    assert simulation.lines[-1] == "warning: ps-0 was killed by SIGKILL; starting it again alone"
    assert simulation.attempt.failure() is None


def test_process_that_cannot_be_restarted_alone_ends_the_attempt_and_not_the_command(simulate):
    simulation = simulate(
        ["worker-0", "ps-0"],
        [("worker-0", PHASE, "train"), ("ps-0", PHASE, "serve"), ("ps-0", EXIT, -9)],
        strategy=ServingStrategy(),
    )
    start = simulation.new_process

    def start_once(process_id):
        if len(simulation.processes) == 2:
            raise OSError(12, "Cannot allocate memory")
        return start(process_id)

    simulation.new_process = start_once
    assert simulation.run() == RESTARTABLE
    how = "could not be started again: [Errno 12] Cannot allocate memory"
    assert simulation.blamed == ("ps-0", how)


def test_process_that_does_not_end_when_it_is_killed_is_named_and_left(simulate):
    simulation = simulate(TWO, [*TRAINING, ("worker-0", EXIT, -9)])
    simulation.left = {"worker-1": "process 123"}
    assert simulation.run() == -9
    assert simulation.lines[-1] == ("warning: worker-1 (process 123) was killed but does not end")


CRASHING = [("actor-0", CRASH, "the floor has gone"), ("actor-0", EXIT, 1)]


def test_crashed_actor_is_replaced_and_its_traceback_told(simulate):
    simulation = simulate(
        ["worker-0", "actor-0"], [("worker-0", PHASE, "train"), *CRASHING, ("worker-0", EXIT, 0)]
    )
    assert simulation.run() == 0
    assert simulation.lines[-1] == "warning: actor-0 failed; starting it again alone"
    assert any("actor-0: " in line and "the floor has gone" in line for line in simulation.lines)
    assert simulation.errors == []
    assert simulation.attempt.failure() is None


def test_actor_that_is_lost_too_often_ends_the_run(simulate):
    simulation = simulate(
        ["worker-0", "actor-0"],
        [("worker-0", PHASE, "train"), *CRASHING],
        may_replace=False,
    )
    assert simulation.run() == CRASHED
    assert "gave up after 5 lost actors since the newest checkpoint" in simulation.errors[-1]
    assert simulation.blamed == ("actor-0", "failed")


def test_actor_with_a_wrong_option_ends_the_run_at_once(simulate):
    script = [("actor-0", PROBLEM, "env: no"), ("actor-0", EXIT, WRONG_INPUT)]
    simulation = simulate(["worker-0", "actor-0"], script)
    assert simulation.run() == WRONG_INPUT


def test_stop_is_forwarded_once_though_every_process_gets_a_signal(simulate):
    # To stop a machine or a container sends a signal to every process in it.
    requests = [
        ("supervisor", SIGNAL, signal.SIGTERM),
        ("worker-0", SIGNAL, signal.SIGTERM),
        ("worker-1", SIGNAL, signal.SIGTERM),
    ]
    simulation = simulate(
        TWO, [*TRAINING, *requests, ("worker-0", EXIT, 143), ("worker-1", EXIT, 143)]
    )
    assert simulation.run() == 143
    assert simulation.requests == [("worker-0", signal.SIGTERM), ("worker-1", signal.SIGTERM)]
    assert simulation.lines == ["SIGTERM: saving, then leaving."]
    assert simulation.attempt.stopped_by() == signal.SIGTERM


def test_second_ctrl_c_leaves_at_once_and_names_the_newest_checkpoint(simulate, tmp_path):
    interrupt = ("supervisor", SIGNAL, signal.SIGINT)
    simulation = simulate(TWO, [*TRAINING, interrupt, interrupt], is_attended=True)
    (tmp_path / "checkpoints").mkdir()
    for step in (3, 12):
        (tmp_path / "checkpoints" / f"ckpt-{step}.json").touch()
    assert simulation.run() == 1
    assert simulation.lines == ["SIGINT: saving, then leaving; once more leaves at once."]
    assert simulation.errors == [
        "a second SIGINT: left without saving; the newest checkpoint is that of step 12"
    ]


def test_attempt_leaves_when_the_grace_period_is_over(simulate):
    simulation = simulate(
        TWO, [*TRAINING, ("worker-1", SIGNAL, signal.SIGTERM)], "preemption.grace_secs=0.05"
    )
    assert simulation.run() == 1
    assert simulation.lines == ["SIGTERM to worker-1: saving, then leaving."]
    assert simulation.errors == [
        "preemption.grace_secs (0.05) are over: left without saving; there is no checkpoint yet"
    ]


@pytest.mark.parametrize("phases", [[], ["join"]])
def test_stop_before_all_have_joined_leaves_at_once(simulate, phases):
    simulation = simulate(
        TWO,
        [("supervisor", SIGNAL, signal.SIGTERM), *(("worker-0", PHASE, phase) for phase in phases)],
    )
    assert simulation.run() == 143


def test_save_request_is_forwarded_and_stops_nothing(simulate):
    requests = [("supervisor", SIGNAL, signal.SIGUSR1)] * 2
    simulation = simulate(
        ["worker-0", "ps-0"],
        [("worker-0", PHASE, "train"), *requests, ("worker-0", EXIT, 0)],
        strategy=ServingStrategy(),
    )
    assert simulation.run() == 0
    assert simulation.requests == [("worker-0", signal.SIGUSR1)] * 2
    assert simulation.attempt.stopped_by() == 0


def test_stop_request_after_the_failure_is_not_lost(simulate):
    simulation = simulate(
        TWO, [*TRAINING, ("worker-1", EXIT, -9), ("supervisor", SIGNAL, signal.SIGTERM)]
    )
    assert simulation.run() == -9
    assert simulation.attempt.stopped_by() == signal.SIGTERM


def test_the_others_are_killed_at_once_after_a_kill(simulate):
    simulation = simulate(TWO, [*TRAINING, ("worker-0", EXIT, -9)])
    assert simulation.run() == -9
    assert simulation.blamed == ("worker-0", "was killed by SIGKILL")
    assert simulation.killed == [("worker-1", signal.SIGKILL)]


def test_process_that_may_be_the_cause_is_not_killed_before_it_tells(simulate):
    script = [
        ("worker-0", PHASE, "train"),
        ("worker-1", PHASE, "compile"),
        ("worker-0", EXIT, RESTARTABLE),
        ("worker-1", EXIT, CRASHED),
    ]
    simulation = simulate(TWO, script)
    assert simulation.run() == CRASHED
    assert simulation.blamed == ("worker-1", "failed")
    assert not simulation.killed


def test_evaluator_beside_does_not_delay_the_restart(simulate):
    script = [("worker-0", PHASE, "train"), ("worker-0", EXIT, RESTARTABLE)]
    simulation = simulate(["worker-0", "evaluator-0"], script)
    assert simulation.run() == RESTARTABLE
    assert simulation.states["evaluator-0"] == "ended"
    assert simulation.killed == [("evaluator-0", signal.SIGKILL)]


def test_evaluator_is_dismissed_when_the_training_was_stopped(simulate):
    simulation = simulate(["worker-0", "evaluator-0"], [("worker-0", EXIT, 143)])
    assert simulation.run() == 143
    assert simulation.states["evaluator-0"] == "done"


def test_worker_that_lingers_is_awaited_only_while_an_evaluator_evaluates(simulate, monkeypatch):
    monkeypatch.setattr(attempt, "_LEAVE_SECS", 0.0)
    script = [("worker-0", EXIT, 0), ("evaluator-0", EXIT, 0)]
    simulation = simulate([*TWO, "evaluator-0"], script)
    assert simulation.run() == 0
    assert simulation.states["worker-1"] != "done"
