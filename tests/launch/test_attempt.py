"""The state machine of an attempt: which process is blamed, what a signal does, and timeouts."""

import functools
import signal
from pathlib import Path

import pytest

from trainer.cli.compose import compose
from trainer.cluster.messages import (
    Crash,
    Dismiss,
    ErrorLine,
    Exit,
    FaultNotice,
    Line,
    Phase,
    Problem,
    SignalReceived,
)
from trainer.cluster.signals import STACKS, StopRequests
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import CRASHED, RESTARTABLE, WRONG_INPUT
from trainer.launch.attempt import (
    NEVER,
    Attempt,
    Begin,
    EndStandby,
    Examine,
    Examined,
    Listening,
    Probe,
    Received,
    Refused,
    Restart,
    Send,
    SendSignal,
    Show,
    ShowStalled,
    ShowUnsaved,
    StartStandby,
    Stopped,
    Tick,
)
from trainer.strategies.strategy import Strategy


class ServingStrategy(Strategy):
    """Its ps processes serve, and may be restarted alone."""

    service_jobs = frozenset({"ps"})
    restartable_jobs = frozenset({"ps"})


class JoiningStrategy(Strategy):
    start_timeout_secs = 8


@functools.cache
def composed(*options):
    return compose(list(options))


def process(name):
    job, _, index = name.partition("-")
    return ProcessId(job, int(index))


class Play:
    """An attempt, its clock, and what it wants done; all its processes are started.

    Attributes:
        actions: what it wants done, in order.
        answers: type of an action -> what answers it, given the action.
    """

    def __init__(self, *names, options=(), strategy=None, jobs=(), is_attended=False, **others):
        self.now = 100.0
        self.actions = []
        self.answers = {Probe: lambda action: Listening([]), Examine: lambda action: self.examined}
        self.examined = Examined([], {})
        self.attempt = Attempt(
            composed(*options),
            strategy or Strategy(),
            [Cluster(process(name), dict(jobs)) for name in names],
            StopRequests(is_attended=is_attended),
            Path("run"),
            **others,
        )
        self.handle(Begin())
        while self.attempt.due_at <= self.now and not self.attempt.is_over:
            self.handle(Tick())

    def handle(self, event):
        """Handle an event; return the actions that it leads to."""
        actions = self.attempt.handle(event, self.now)
        self.actions += actions
        for action in list(actions):
            if answer := self.answers.get(type(action), lambda action: None)(action):
                actions += self.handle(answer)
        return actions

    def send(self, name, *received):
        """Receive messages of a process; return the last actions."""
        for message in received:
            actions = self.handle(Received(process(name), message))
        return actions

    def train(self, *names):
        for name in names:
            self.send(name, Phase("train", 7))
        return self

    def signal(self, number):
        return self.handle(Received(None, SignalReceived(number)))

    def wait(self):
        """Wait for what is due next."""
        self.now = self.attempt.due_at
        return self.handle(Tick())

    def of(self, kind):
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def lines(self):
        return [x.message.text for x in self.of(Show) if isinstance(x.message, Line)]

    @property
    def errors(self):
        return [x.message.text for x in self.of(Show) if isinstance(x.message, ErrorLine)]

    @property
    def blamed(self):
        return str(self.attempt.failure.process_id), self.attempt.failure.end


TWO = ("worker-0", "worker-1")
CRASHING = [Crash("Traceback ...\nthe floor has gone", "the floor has gone"), Exit(1)]


@pytest.mark.parametrize(
    ("ends", "blamed", "how", "code"),
    [
        ([("worker-0", RESTARTABLE), ("worker-1", -9)], "worker-1", "was killed by SIGKILL", -9),
        ([("worker-0", RESTARTABLE), ("worker-1", RESTARTABLE)], "worker-0", "lost its peers", 75),
        ([("worker-0", RESTARTABLE), ("worker-1", 1)], "worker-1", "failed", 1),
        ([("worker-0", -9)], "worker-0", "was killed by SIGKILL", -9),
    ],
)
def test_attempt_blames_the_cause_and_not_a_process_that_lost_a_peer(ends, blamed, how, code):
    play = Play(*TWO).train(*TWO)
    for name, end in ends:
        assert not play.attempt.is_over
        play.send(name, Exit(end))
    assert play.attempt.is_over
    assert (play.attempt.code, play.blamed) == (code, (blamed, how))


def test_cause_of_a_lost_peer_is_awaited_for_a_while():
    play = Play(*TWO).train(*TWO)
    play.send("worker-0", Exit(RESTARTABLE))
    play.wait()
    assert play.attempt.is_over
    assert play.now == 103
    play.handle(Stopped(process("worker-1")))
    assert play.blamed == ("worker-1", "was stopped by a signal")


def test_hung_process_ends_the_attempt():
    play = Play(*TWO, options=["watchdog.stall_secs=5"])
    play.train("worker-1")
    play.now += 1
    play.train("worker-0")
    assert play.wait()[0] == Examine()
    assert (play.attempt.is_over, play.attempt.code) == (True, RESTARTABLE)
    assert play.blamed == ("worker-1", "made no progress")
    assert play.of(ShowStalled) == [ShowStalled(process("worker-1"))]
    assert play.lines[:2] == [
        "warning: worker-1 makes no progress: train at step 7, for 5 s (watchdog.stall_secs)",
        "  worker-0: train at step 7, for 4 s",
    ]


def test_hung_process_that_is_stopped_is_shown_as_such():
    play = Play(*TWO, options=["watchdog.stall_secs=5"]).train(*TWO)
    play.examined = Examined([process("worker-1")], {})
    play.wait()
    assert play.blamed == ("worker-1", "made no progress")
    assert "; it is stopped by a signal" in play.lines[0]


def test_process_that_makes_progress_while_stacks_are_collected_does_not_hang():
    play = Play(*TWO, options=["watchdog.stall_secs=5"]).train(*TWO)
    del play.answers[Examine]
    assert play.wait() == [Examine()]
    assert play.attempt.due_at == NEVER  # once
    play.now += 1
    play.train(*TWO)
    assert play.handle(Examined([], {})) == []
    assert play.attempt.due_at == play.now + 5


def serving():
    options = ["watchdog.stall_secs=20"]
    play = Play("worker-0", "ps-0", options=options, strategy=ServingStrategy())
    play.examined = Examined([process("ps-0")], {})
    play.train("worker-0").send("ps-0", Phase("serve", 0))
    return play


def test_hung_server_is_restarted_alone():
    play = serving()
    play.wait()
    assert play.of(SendSignal) == [SendSignal("ps-0", signal.SIGKILL)]
    line = "warning: ps-0 was killed by SIGKILL; starting it again alone"
    assert play.send("ps-0", Exit(-9)) == [Restart(process("ps-0"), -9, [line])]
    assert not play.attempt.is_over
    play.send("worker-0", Exit(0))
    assert play.attempt.failure is None


def test_server_that_does_not_end_when_it_is_killed_ends_the_attempt():
    play = serving()
    play.wait()
    play.now += 9
    play.train("worker-0")
    play.wait()
    assert (play.attempt.is_over, play.attempt.code) == (True, RESTARTABLE)
    assert play.blamed == ("ps-0", "was killed but does not end")


def test_crashed_actor_is_replaced_and_its_traceback_shown():
    play = Play("worker-0", "actor-0").train("worker-0")
    play.send("actor-0", *CRASHING)
    (restart,) = play.of(Restart)
    assert restart.lines == [
        "actor-0: Traceback ...",
        "actor-0: the floor has gone",
        "warning: actor-0 failed; starting it again alone",
    ]
    assert not play.of(Show)[1:]


def test_actor_that_is_lost_too_often_ends_the_run():
    play = Play("worker-0", "actor-0").train("worker-0")
    play.answers[Restart] = lambda action: Refused(action.process_id, action.code)
    shown, error = play.send("actor-0", *CRASHING)[1:]
    assert shown.message.cause == "the floor has gone"
    assert "gave up after 5 lost actors since the newest checkpoint" in error.message.text
    assert (play.attempt.code, play.blamed) == (CRASHED, ("actor-0", "failed"))


def test_actor_with_a_wrong_option_ends_the_run_at_once():
    play = Play("worker-0", "actor-0")
    play.answers[Restart] = lambda action: Refused(action.process_id, action.code)
    play.send("actor-0", Problem(["env: no"]), Exit(WRONG_INPUT))
    assert (play.attempt.is_over, play.attempt.code) == (True, WRONG_INPUT)
    assert not play.errors


def test_stop_is_forwarded_once_though_every_process_gets_a_signal():
    # To stop a machine or a container sends a signal to every process in it.
    play = Play(*TWO).train(*TWO)
    request = SignalReceived(signal.SIGTERM)
    actions = play.handle(Received(None, request))
    for name in TWO:
        assert not play.send(name, request)
    assert actions == [
        Show(Line("SIGTERM: saving, then exiting.")),
        *(Send(process(name), request) for name in TWO),
        EndStandby(),
    ]
    for name in TWO:
        play.send(name, Exit(143))
    assert (play.attempt.is_over, play.attempt.code, play.attempt.failure) == (True, 143, None)


def test_second_ctrl_c_leaves_at_once():
    play = Play(*TWO, is_attended=True).train(*TWO)
    play.signal(signal.SIGINT)
    assert play.lines == ["SIGINT: saving, then exiting; again exits immediately."]
    assert play.signal(signal.SIGINT) == [ShowUnsaved("a second SIGINT")]
    assert (play.attempt.is_over, play.attempt.code) == (True, 1)


@pytest.mark.parametrize("phases", [[], ["join"]])
def test_stop_before_all_have_joined_leaves_at_once(phases):
    play = Play(*TWO)
    play.signal(signal.SIGTERM)
    play.send("worker-0", *(Phase(phase, 0) for phase in phases)) if phases else None
    assert (play.attempt.is_over, play.attempt.code) == (True, 143)


def test_save_request_is_forwarded_to_those_that_train_and_stops_nothing():
    play = serving()
    for _ in range(2):
        request = SignalReceived(signal.SIGUSR1)
        assert play.handle(Received(None, request)) == [Send(process("worker-0"), request)]
    play.send("worker-0", Exit(0))
    assert play.of(Send)[-1] == Send(process("ps-0"), Dismiss())


@pytest.mark.parametrize(("code", "is_dismissed"), [(0, False), (143, True)])
def test_evaluator_is_dismissed_when_the_training_was_stopped(code, is_dismissed):
    play = Play("worker-0", "evaluator-0")
    actions = play.send("worker-0", Exit(code))
    assert actions == [Send(process("evaluator-0"), Dismiss())] * is_dismissed
    assert (play.attempt.due_at == play.now + 60) == is_dismissed
    play.send("evaluator-0", Exit(0))
    assert (play.attempt.is_over, play.attempt.code) == (True, code)


def test_user_sees_the_messages_of_the_first_process_and_those_of_the_whole_run():
    play = Play(*TWO, "evaluator-0")
    shown = [(name, line) for name in (*TWO, "evaluator-0") for line in ("a line", "warning: x")]
    shown = [
        (name, line)
        for name, line in shown
        if play.send(name, Line(line)) == [Show(Line(line), process(name))]
    ]
    assert [name for name, line in shown if line == "a line"] == ["worker-0", "evaluator-0"]
    assert sum(line.startswith("warning") for _, line in shown) == 3
    assert play.send("worker-1", FaultNotice("a fault"))
    assert [len(play.send(name, CRASHING[0])) for name in ("worker-1", "worker-0")] == [1, 0]


@pytest.mark.parametrize("secs", [0.0, 30.0])
def test_standby_is_due_after_some_training_and_once(secs):
    play = Play(*TWO, standby_secs=secs).train(*TWO)
    assert play.attempt.due_at == play.now + secs
    assert play.wait() == [StartStandby()]
    play.train(*TWO)
    assert StartStandby() not in play.wait()


JOBS = {"worker": ["a:1", "b:2"]}


def test_process_that_was_started_here_is_awaited_until_its_first_phase():
    play = Play(*TWO, jobs=JOBS, strategy=JoiningStrategy())
    play.send("worker-0", Phase("join", 0))
    assert play.wait() == [
        Probe([]),
        Show(Line("worker-0 waits for worker-1 (b:2) to start (5 s)")),
    ]
    play.send("worker-1", Phase("join", 0))
    assert play.wait() == [Probe([])]
    play.send("worker-1", Exit(RESTARTABLE))
    play.send("worker-0", Phase("start", 0))
    assert play.blamed == ("worker-1", "lost its peers")


def test_process_that_hangs_while_it_connects_is_restarted():
    play = Play(*TWO, jobs=JOBS, strategy=JoiningStrategy())
    play.send("worker-0", Phase("join", 0))
    play.send("worker-1", Phase("join", 0))
    while not play.attempt.is_over:
        play.wait()
    how = "has not joined the others in 8 s, though all have started"
    assert (play.attempt.code, *play.blamed) == (RESTARTABLE, "worker-0", how)


def test_process_that_hangs_before_it_connects_shows_where_and_is_restarted():
    play = Play(*TWO, jobs=JOBS, strategy=JoiningStrategy())
    play.send("worker-0", Phase("join", 0))
    actions = []
    while not play.attempt.is_over:
        actions += play.wait()
    assert SendSignal("worker-1", STACKS) in actions
    how = "has not joined the others 8 s after worker-0"
    assert (play.attempt.code, *play.blamed) == (RESTARTABLE, "worker-1", how)


def test_process_of_another_program_is_there_if_its_port_answers():
    play = Play("worker-0", jobs=JOBS, strategy=JoiningStrategy())
    play.answers[Probe] = lambda action: Listening(["b:2"])
    play.send("worker-0", Phase("join", 0))
    assert play.wait() == [Probe(["b:2"])]
    play.answers[Probe] = lambda action: Listening([])
    play.wait()
    assert play.errors[0] == (
        "worker-0 waited 8 s for worker-1 (b:2) to start; start them, or wait longer with "
        "strategy.start_timeout_secs"
    )
    assert (play.attempt.is_over, play.attempt.code) == (True, CRASHED)
