"""Faults on request: who does what when, once. Real runs come through them in test_chaos.py, and in docs/how-to/failures.md."""

import errno
import json
import os
import signal

import pytest

from tests.training import assert_same_bits, train
from trainer import faults
from trainer.channel import Channel
from trainer.cli import compose
from trainer.cluster import Cluster, Task
from trainer.errors import CheckpointError, ConfigError, NonFiniteError
from trainer.faults import Faults
from trainer.markers import commit, verify
from trainer.schema import Fault

JOBS = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}
NO_STEPS = {"evaluator", "ps", "worker"}


@pytest.fixture
def signals(monkeypatch):
    """What signals were sent: to this process, or to another."""
    sent = []
    monkeypatch.setattr(signal, "raise_signal", lambda number: sent.append(("self", number)))
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(("parent" if pid == os.getppid() else pid, number)))
    monkeypatch.setattr("trainer.faults.time.sleep", lambda secs: sent.append(("rest", secs)))
    return sent


def made(run_dir, fault, place=None, servers=("evaluator",), told=None):
    return Faults({"mine": fault}, run_dir, place or Cluster(), Channel((told if told is not None else []).append), servers)


def reach(made, last=4):
    for step in range(last + 1):
        made.reached("step", step)


@pytest.mark.parametrize(("what", "number"), [("kill", signal.SIGKILL), ("terminate", signal.SIGTERM), ("freeze", signal.SIGSTOP)])
def test_a_process_does_it_to_itself_at_the_step_once_over_all_attempts(tmp_path, signals, what, number):
    told = []
    for _ in range(2):
        reach(made(tmp_path, Fault(what, at=3), told=told))
    assert signals == [("self", number)]
    words = {"kill": "is killed", "terminate": "is asked to stop", "freeze": "is frozen"}
    assert [message["text"] for message in told] == [f"fault mine: chief {words[what]} at step 3"]
    assert json.loads((tmp_path / "faults" / "mine.json").read_text())["moment"] == "at step 3"


def test_it_is_recorded_before_it_happens(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "raise_signal", lambda number: recorded.append((tmp_path / "faults" / "mine.json").exists()))
    recorded: list[bool] = []
    reach(made(tmp_path, Fault(at=1)))
    assert recorded == [True]


@pytest.mark.parametrize(("when", "reached"), [("start", 1), ("compile", 1), ("evaluate", 2), ("save", 2)])
def test_other_moments(tmp_path, signals, when, reached):
    rehearsed = made(tmp_path, Fault(when=when, at=2))
    for other in ("start", "compile", "evaluate", "save"):
        if other != when:
            rehearsed.reached(other)
            rehearsed.reached(other)
    assert signals == []
    for _ in range(reached):
        rehearsed.reached(when)
    assert len(signals) == 1


@pytest.mark.parametrize(
    ("who", "place", "servers", "expected"),
    [
        ("worker-1", Cluster(Task("worker", 0), {"worker": ["a:1", "b:1"]}), {"evaluator"}, []),
        ("worker-1", Cluster(Task("worker", 1), {"worker": ["a:1", "b:1"]}), {"evaluator"}, [("self", 9)]),
        ("chief", Cluster(Task("worker", 1), {"worker": ["a:1", "b:1"]}), {"evaluator"}, []),
        ("worker-0", Cluster(), {"evaluator"}, [("self", 9)]),
        ("supervisor", Cluster(), {"evaluator"}, [("parent", 9), ("rest", 10.0)]),
        ("supervisor", Cluster(Task("worker", 1), {"worker": ["a:1", "b:1"]}), {"evaluator"}, []),
        ("ps-0", Cluster(Task("chief", 0), JOBS), NO_STEPS, [("ps-0", 9)]),
        ("worker-0", Cluster(Task("chief", 0), JOBS), NO_STEPS, [("worker-0", 9)]),
        ("worker-0", Cluster(Task("worker", 0), JOBS), NO_STEPS, []),
    ],
)
def test_the_chief_does_it_to_those_that_run_no_steps(tmp_path, signals, who, place, servers, expected):
    told = []
    reach(made(tmp_path, Fault(who=who, at=2), place, servers, told))
    assert signals + [(message["who"], message["signal"]) for message in told if message["kind"] == "inflict"] == expected


def test_a_process_that_runs_no_steps_knows_that_it_starts(tmp_path, signals):
    for place in (Cluster(Task("ps", 0), JOBS), Cluster(Task("chief", 0), JOBS)):
        made(tmp_path, Fault(who="ps-0", when="start"), place, NO_STEPS).reached("start")
    assert signals == [("self", 9)]


def test_later_means_that_the_process_goes_on_meanwhile(tmp_path, monkeypatch):
    timers = []

    class Timer:
        def __init__(self, secs, action, args):
            timers.append((secs, action, args))

        def start(self):
            pass

    acted = []
    monkeypatch.setattr("trainer.faults.threading.Timer", Timer)
    monkeypatch.setattr(os, "kill", lambda process, number: acted.append((process, number)))
    reach(made(tmp_path, Fault(at=2, delay_secs=0.5)))
    ((secs, action, args),) = timers
    assert (secs, acted) == (0.5, [])
    action(*args)
    assert acted == [(os.getpid(), signal.SIGKILL)]  # to the process: the timer's own thread takes no signal


def test_a_slow_process_is_slow_from_then_on_and_again_in_the_next_attempt(tmp_path, signals):
    told = []
    for _ in range(2):
        reach(made(tmp_path, Fault("slow", at=3, delay_secs=0.5), told=told))
    assert signals == [("rest", 0.5)] * 4
    assert [message["text"] for message in told] == ["fault mine: chief rests 0.5 s each time from at step 3"] * 2


def test_errors(tmp_path):
    with pytest.raises(OSError, match="No space left") as raised:
        made(tmp_path / "a", Fault("full_disk", when="save")).reached("save")
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="fault mine: rehearsed at step 2"):
        reach(made(tmp_path / "b", Fault("crash", at=2)))


def test_corruption_damages_the_newest_checkpoint(tmp_path, signals):
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    for step in (3, 6):
        (directory / f"ckpt-{step}.data-0").write_bytes(b"content")
        (directory / f"ckpt-{step}.index").write_bytes(b"i")
        commit(directory, step, None)
    reach(made(tmp_path, Fault("corrupt", at=2)))
    assert verify(directory, 3) is None
    assert verify(directory, 6) == "the content of ckpt-6.data-0 has changed"
    assert signals == [("self", signal.SIGKILL)]


def test_features_of_one_step_are_poisoned_once(tmp_path):
    turned = []
    for _ in range(2):
        rehearsed = made(tmp_path, Fault("nan", at=3))
        rehearsed.poison = turned.append
        assert rehearsed.poisons
        assert rehearsed.stops == {2, 3}
        reach(rehearsed)
    assert turned == [True, False]


def test_no_call_runs_past_a_fault_of_any_process(tmp_path):
    assert made(tmp_path, Fault(who="worker-7", at=5)).stops == {5}
    assert made(tmp_path, Fault(when="save", at=5)).stops == frozenset()


@pytest.mark.parametrize(
    ("fault", "tasks", "declared", "line"),
    [
        ("{who:worker-1}", [("worker", 0)], False, "choose one of chief, supervisor, worker-0; did you mean 'worker-0'?"),
        ("{who:ps-0,what:crash}", [("chief", 0), ("ps", 0)], False, "fault.x.what (crash) must be one of kill, terminate, freeze"),
        ("{who:ps-0}", [("chief", 0), ("ps", 0)], True, "in a declared cluster; rehearse it in one that is started here"),
        ("{who:ps-0,when:start}", [("chief", 0), ("ps", 0)], True, None),
        ("{who:supervisor}", [("worker", 0)], True, None),
    ],
)  # fmt: skip
def test_what_could_never_happen_is_refused(fault, tasks, declared, line):
    experiment = compose([f"+fault.x={fault}"])
    found = [Task(*task) for task in tasks]
    if line is None:
        faults.check(experiment, found, NO_STEPS, declared=declared)
    else:
        with pytest.raises(ConfigError) as raised:
            faults.check(experiment, found, NO_STEPS, declared=declared)
        (problem,) = raised.value.problems
        assert problem.startswith("fault.x.who (")
        assert problem.endswith(line)


def test_a_stop_of_the_call_changes_no_bit(tmp_path):
    assert_same_bits(train(tmp_path / "a"), train(tmp_path / "b", "+fault.mine={what:slow,at:3,delay_secs:1e-6}"))


def test_a_step_of_no_numbers_is_seen_at_that_step(tmp_path):
    with pytest.raises(NonFiniteError, match="the loss became nan after 4 steps"):
        train(tmp_path, "+fault.mine={what:nan,at:5}")


def test_a_full_disk_is_the_error_of_its_save(tmp_path):
    with pytest.raises(CheckpointError, match=r"the checkpoint of step 4 .* No space left on device"):
        train(tmp_path, "checkpoint.every_steps=2", "+fault.mine={what:full_disk,when:save,at:2}")
    assert train(tmp_path, "checkpoint.every_steps=2", "+fault.mine={what:full_disk,when:save,at:2}")
