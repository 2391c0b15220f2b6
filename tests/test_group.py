"""The processes of an attempt, played: who is to blame, what a signal does, and when patience ends."""

import signal
from types import SimpleNamespace

import pytest

from tests.terminal import Terminal
from trainer import group, watchdog
from trainer.cli import compose
from trainer.cluster import Cluster, Task
from trainer.console import Console
from trainer.exitcodes import RESTARTABLE
from trainer.group import Group
from trainer.strategies.base import Strategy

PHASE, EXIT, SIGNAL, CRASH = "phase", "exit", "signal", "crash"


class Servers(Strategy):
    """Its ps serve."""

    servers = frozenset({"ps"})
    replaceable = frozenset({"ps"})


class Player:
    """A group whose processes say what is written for them when the last of them has been started."""

    def __init__(self, directory, names, script, *options, strategy=None, jobs=None):
        self.processes, self.lines, self.errors, self.requests = {}, [], [], []
        self.stopped, self.killed, self.script = set(), [], script
        tasks = [Task(name.split("-")[0], int(name.split("-")[1])) for name in names]
        self.names, self.directory, self.standing = names, directory, {}
        console = Standing(self.standing, self.lines, self.errors)
        members = [Cluster(task, jobs or {}) for task in tasks]
        self.group = Group(
            SimpleNamespace(path=directory),
            compose(list(options)),
            strategy or Strategy(),
            members,
            console,
            lambda: Played(self),
            lambda: True,
        )

    def run(self):
        return self.group.run()

    def play(self):
        script, self.script = self.script, []
        for name, kind, value in script:
            if name == "supervisor":
                self.group.signal(value)
            else:
                self.processes[name].say(kind, value)


class Standing(Console):
    """Keeps what is told of each process."""

    def __init__(self, standing, lines, errors):
        super().__init__(Terminal(), Terminal())
        self.standing, self.line, self.error = standing, lines.append, errors.append

    def begin(self, task):
        self.standing[str(task)] = "starting"

    def heard(self, task, message):
        self.standing[str(task)] = message["phase"]

    def ended(self, task, end, why=""):
        self.standing[str(task)] = f"{end}: {why}" if why else end


class Played:
    def __init__(self, player):
        self.player = player

    def assign(self, run, experiment, member, messages):
        self.task, self.messages = member.task, messages
        self.player.processes[str(member.task)] = self
        if len(self.player.processes) == len(self.player.names):
            self.player.play()

    def say(self, kind, value):
        content = {PHASE: {"phase": value, "step": 7}, EXIT: {"code": value}, SIGNAL: {"number": value}}.get(kind)
        content = content or {"cause": value, "text": f"Traceback ...\n{value}"}
        self.messages.put({"kind": kind, **content, "from": self.task})

    def request(self, number):
        self.player.requests.append((str(self.task), number))

    def signal(self, number):
        self.player.killed.append((str(self.task), number))
        self.say(EXIT, -number)

    def is_stopped(self):
        return str(self.task) in self.player.stopped

    def leave(self):
        self.say(EXIT, 0)

    def discard(self):
        pass


TWO = ["worker-0", "worker-1"]
TRAINING = [(name, PHASE, "train") for name in TWO]


@pytest.fixture
def play(tmp_path, monkeypatch):
    monkeypatch.setattr(group, "_CAUSE_SECS", 0.05)
    monkeypatch.setattr(watchdog, "_stacks", lambda processes, logs: {})
    return lambda *arguments, **options: Player(tmp_path, *arguments, **options)


@pytest.mark.parametrize(
    ("ends", "failed", "why", "code"),
    [
        ([("worker-0", RESTARTABLE), ("worker-1", -9)], "worker-1", "was killed by SIGKILL", -9),
        ([("worker-1", -9), ("worker-0", RESTARTABLE)], "worker-1", "was killed by SIGKILL", -9),
        ([("worker-0", RESTARTABLE), ("worker-1", RESTARTABLE)], "worker-0", "lost its peers", RESTARTABLE),
        ([("worker-0", RESTARTABLE), ("worker-1", 1)], "worker-1", "failed", 1),
        ([("worker-1", -9), ("worker-0", -11)], "worker-1", "was killed by SIGKILL", -9),
    ],
)
def test_the_cause_is_named_and_not_who_lost_a_peer(play, ends, failed, why, code):
    played = play(TWO, [*TRAINING, *((name, EXIT, end) for name, end in ends)])
    assert played.run() == code
    assert (str(played.group.failed), played.group.why) == (failed, why)


@pytest.mark.parametrize(
    ("script", "standing"),
    [
        ([*TRAINING, ("worker-0", EXIT, 0), ("worker-1", EXIT, 0)], ["done", "done"]),
        ([("worker-0", PHASE, "join"), ("worker-1", EXIT, -9)], ["ended", "lost: was killed by SIGKILL"]),
        ([*TRAINING, ("worker-0", EXIT, RESTARTABLE), ("worker-1", EXIT, -9)], ["left: lost its peers", "lost: was killed by SIGKILL"]),
        ([*TRAINING, ("worker-0", EXIT, 1)], ["failed", "ended"]),
        ([*TRAINING, ("worker-0", EXIT, 143), ("worker-1", EXIT, 143)], ["stopped", "stopped"]),
    ],
)
def test_what_becomes_of_each_process_is_told(play, script, standing):
    played = play(TWO, script)
    played.run()
    assert played.standing == dict(zip(TWO, standing, strict=True))


@pytest.mark.parametrize("code", [1, 2, 3])
def test_users_code_that_leaves_without_a_word_is_a_crash_and_told(play, code):
    played = play(TWO, [*TRAINING, ("worker-1", EXIT, code)])
    assert (played.run(), str(played.group.failed)) == (1, "worker-1")
    assert str(played.group.failure()) == "worker-1 failed: left without a word"
    assert played.errors == [f"worker-1 left without a word; its log is {played.directory / 'logs' / 'worker-1.log'}"]


def test_what_the_cause_has_told_is_kept_and_not_what_its_echo_tells(play):
    crashes = [("worker-0", CRASH, "InternalError: a peer"), ("worker-1", CRASH, "ValueError: no")]
    played = play(TWO, [*TRAINING, *crashes, ("worker-1", EXIT, 1), ("worker-0", EXIT, 1)])
    assert played.run() == 1
    failure = played.group.failure()
    assert (str(failure), failure.text) == ("worker-1 failed: ValueError: no", "Traceback ...\nValueError: no")
    assert failure.log == played.directory / "logs" / "worker-1.log"


def test_where_none_failed_there_is_no_failure(play):
    played = play(TWO, [*TRAINING, ("worker-0", EXIT, 0), ("worker-1", EXIT, 0)])
    assert (played.run(), played.group.failure()) == (0, None)


def test_a_process_that_is_stopped_is_named_by_those_who_lost_it(play):
    played = play(TWO, [*TRAINING, ("worker-0", EXIT, RESTARTABLE)])
    played.stopped.add("worker-1")
    assert played.run() == RESTARTABLE
    assert (str(played.group.failed), played.group.why) == ("worker-1", "was stopped by a signal")


@pytest.mark.parametrize(
    ("stopped", "why", "state"),
    [
        ([], "made no progress", ")"),
        (["worker-1"], "was stopped by a signal", "; it is stopped by a signal, and cannot show its stacks)"),
    ],
)
def test_a_stall_ends_the_attempt_and_names_who_hangs(play, stopped, why, state):
    played = play(TWO, [("worker-1", PHASE, "train"), ("worker-0", PHASE, "train")], "watchdog.stall_secs=0.1")
    played.stopped.update(stopped)
    assert played.run() == RESTARTABLE
    assert (str(played.group.failed), played.group.why) == ("worker-1", why)
    assert played.lines[0] == f"warning: worker-1 makes no progress: train at step 7, for 0 s (watchdog.stall_secs{state}"
    assert played.lines[1] == "  worker-0: train at step 7, for 0 s"
    assert played.standing == {"worker-0": "ended", "worker-1": "stalled"}
    failure = played.group.failure()
    assert str(failure) == f"worker-1 {why}: train at step 7, for 0 s (watchdog.stall_secs{state}"
    assert failure.text.splitlines() == played.lines[1:]


def test_a_replaceable_process_that_hangs_is_replaced_alone(play):
    played = play(
        ["worker-0", "ps-0"], [("worker-0", PHASE, "train"), ("ps-0", PHASE, "serve")], "watchdog.stall_secs=0.2", strategy=Servers()
    )
    played.stopped.add("ps-0")
    began = played.group._begin

    def begin(member):
        if "ps-0" in played.processes:  # the second
            played.stopped.clear()
            played.script = [("worker-0", EXIT, 0)]
        began(member)

    played.group._begin = begin
    assert played.run() == 0
    assert played.killed == [("ps-0", signal.SIGKILL)]
    assert played.lines[-1] == "warning: ps-0 was killed by SIGKILL; starting it again alone"
    assert played.group.failed is None


def test_a_stop_is_passed_on_once_however_many_get_it(play):
    # Whoever stops a machine or a container sends a signal to every process in it.
    asked = [("supervisor", SIGNAL, signal.SIGTERM), ("worker-0", SIGNAL, signal.SIGTERM), ("worker-1", SIGNAL, signal.SIGTERM)]
    played = play(TWO, [*TRAINING, *asked, ("worker-0", EXIT, 143), ("worker-1", EXIT, 143)])
    assert played.run() == 143
    assert played.requests == [("worker-0", signal.SIGTERM), ("worker-1", signal.SIGTERM)]
    assert played.lines == ["SIGTERM: saving, then leaving; once more leaves at once."]
    assert played.group.stopped_by() == signal.SIGTERM


@pytest.mark.parametrize("who", ["supervisor", "worker-1"])
def test_a_second_signal_leaves_at_once_and_says_what_there_is(play, tmp_path, who):
    played = play(TWO, [*TRAINING, (who, SIGNAL, signal.SIGINT), (who, SIGNAL, signal.SIGTERM)])
    (tmp_path / "checkpoints").mkdir()
    for step in (3, 12):
        (tmp_path / "checkpoints" / f"ckpt-{step}.json").touch()
    assert played.run() == 1
    assert played.errors == ["a second SIGTERM: left without saving; the newest checkpoint is that of step 12"]


def test_the_grace_ends_it_too(play):
    played = play(TWO, [*TRAINING, ("worker-1", SIGNAL, signal.SIGTERM)], "preemption.grace_secs=0.05")
    assert played.run() == 1
    assert played.lines == ["SIGTERM to worker-1: saving, then leaving; once more leaves at once."]
    assert played.errors == ["preemption.grace_secs (0.05) are over: left without saving; there is no checkpoint yet"]


def test_who_has_saved_has_saved_whatever_comes_then(play):
    asked = ("supervisor", SIGNAL, signal.SIGTERM)
    played = play(TWO, [*TRAINING, asked, ("worker-0", EXIT, 143), asked])
    assert played.run() == 143
    assert played.errors == []


@pytest.mark.parametrize("phases", [[], ["join"]])
def test_before_all_have_met_there_is_nothing_to_save(play, phases):
    played = play(TWO, [("supervisor", SIGNAL, signal.SIGTERM), *(("worker-0", PHASE, phase) for phase in phases)])
    assert played.run() == 143


def test_a_server_is_awaited_so_that_it_can_pass_a_stop_on(play):
    played = play(["ps-0"], [("supervisor", SIGNAL, signal.SIGTERM), ("ps-0", PHASE, "serve"), ("ps-0", EXIT, 143)], strategy=Servers())
    assert played.run() == 143
    assert played.requests == [("ps-0", signal.SIGTERM)]


def test_a_request_to_save_is_passed_on_and_changes_nothing_else(play):
    asked = [("supervisor", SIGNAL, signal.SIGUSR1)] * 2
    played = play(["worker-0", "ps-0"], [("worker-0", PHASE, "train"), *asked, ("worker-0", EXIT, 0)], strategy=Servers())
    assert played.run() == 0
    assert played.requests == [("worker-0", signal.SIGUSR1)] * 2
    assert played.group.stopped_by() == 0


def test_a_signal_that_nobody_has_looked_at_is_not_lost(play):
    played = play(TWO, [*TRAINING, ("worker-1", EXIT, -9), ("supervisor", SIGNAL, signal.SIGTERM)])
    assert played.run() == -9
    assert played.group.stopped_by() == signal.SIGTERM
