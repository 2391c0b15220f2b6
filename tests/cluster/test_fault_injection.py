"""Fault injection: which process, what, when, and only once.

Real runs survive faults in tests/end_to_end/ and docs/how-to/failures.md.
"""

import errno
import json
import os
import signal

import pytest

from tests.support.training import train
from trainer.cli.compose import compose
from trainer.cluster.fault_injection import Faults, check
from trainer.cluster.messages import Channel, SignalRequest
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Fault
from trainer.errors import ConfigError, NonFiniteError
from trainer.runs.checkpoint_marker import commit, verify

JOBS = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}
NO_STEPS = {"evaluator", "ps", "worker"}


@pytest.fixture
def signals(monkeypatch):
    """The signals that were sent: to this process, or to another."""
    sent = []
    monkeypatch.setattr(signal, "raise_signal", lambda number: sent.append(("self", number)))
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(
        "trainer.cluster.fault_injection.time.sleep", lambda secs: sent.append(("rest", secs))
    )
    return sent


def faults_of(run_dir, fault, cluster=None, service_jobs=("evaluator",), messages=None):
    """Return the faults of a run with one fault, named mine."""
    channel = Channel((messages if messages is not None else []).append)
    return Faults({"mine": fault}, run_dir, cluster or Cluster(), channel, service_jobs)


def reach_steps(faults):
    for step in range(5):
        faults.reached("step", step)


@pytest.mark.parametrize(
    ("action", "number", "effect"),
    [
        ("kill", signal.SIGKILL, "is killed"),
        ("terminate", signal.SIGTERM, "gets SIGTERM"),
        ("freeze", signal.SIGSTOP, "is frozen"),
    ],
)
def test_process_injects_own_fault_once_over_all_attempts(
    tmp_path, signals, action, number, effect
):
    messages = []
    for _ in range(2):
        reach_steps(faults_of(tmp_path, Fault(action, at=3), messages=messages))
    assert signals == [("self", number)]
    assert [message.text for message in messages] == [f"fault mine: chief {effect} at step 3"]
    assert json.loads((tmp_path / "faults" / "mine.json").read_text())["moment"] == "at step 3"


@pytest.mark.parametrize(
    ("phase", "count"), [("start", 1), ("compile", 1), ("evaluate", 2), ("save", 2)]
)
def test_other_phases_inject_once_reached(tmp_path, signals, phase, count):
    faults = faults_of(tmp_path, Fault(phase=phase, at=2))
    for other in ("start", "compile", "evaluate", "save"):
        if other != phase:
            faults.reached(other)
            faults.reached(other)
    assert signals == []
    for _ in range(count):
        faults.reached(phase)
    assert len(signals) == 1


TWO = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("process", "job", "index", "jobs", "expected"),
    [
        ("worker-1", "worker", 0, TWO, []),
        ("worker-1", "worker", 1, TWO, [("self", 9)]),
        ("chief", "worker", 1, TWO, []),
        ("supervisor", "worker", 0, TWO, [("rest", 10.0), ("supervisor", 9)]),
        ("supervisor", "worker", 1, TWO, []),
        ("ps-0", "chief", 0, JOBS, [("ps-0", 9)]),
        ("worker-0", "chief", 0, JOBS, [("worker-0", 9)]),
        ("worker-0", "worker", 0, JOBS, []),
    ],
)
def test_chief_injects_faults_of_processes_that_count_no_steps(
    tmp_path, signals, process, job, index, jobs, expected
):
    messages = []
    cluster = Cluster(ProcessId(job, index), jobs)
    service_jobs = NO_STEPS if jobs is JOBS else {"evaluator"}
    reach_steps(faults_of(tmp_path, Fault(process=process, at=2), cluster, service_jobs, messages))
    requests = [message for message in messages if isinstance(message, SignalRequest)]
    sent = [(request.process, request.number) for request in requests]
    assert signals + sent == expected


def test_full_disk_and_crash_raise_their_errors(tmp_path):
    with pytest.raises(OSError, match="No space left") as raised:
        faults_of(tmp_path / "a", Fault("full_disk", phase="save")).reached("save")
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="fault mine: injected at step 2"):
        reach_steps(faults_of(tmp_path / "b", Fault("crash", at=2)))


def test_corruption_damages_newest_checkpoint(tmp_path, signals):
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    for step in (3, 6):
        (directory / f"ckpt-{step}.data-0").write_bytes(b"content")
        (directory / f"ckpt-{step}.index").write_bytes(b"i")
        commit(directory, step, None)
    reach_steps(faults_of(tmp_path, Fault("corrupt", at=2)))
    assert verify(directory, 3) is None
    assert verify(directory, 6) == "the content of ckpt-6.data-0 has changed"
    assert signals == [("self", signal.SIGKILL)]


ACTIONS = "must be one of kill, terminate, freeze"


@pytest.mark.parametrize(
    ("fault", "processes", "declared", "line"),
    [
        ("{process:worker-1}", [("worker", 0)], False, "did you mean 'worker-0'?"),
        ("{process:ps-0,action:crash}", [("chief", 0), ("ps", 0)], False, ACTIONS),
        ("{process:ps-0}", [("chief", 0), ("ps", 0)], True, "in a declared cluster"),
        ("{process:supervisor}", [("worker", 0)], True, None),
    ],
)  # fmt: skip
def test_fault_that_could_never_happen_is_refused(fault, processes, declared, line):
    experiment = compose([f"+fault.x={fault}"])
    process_ids = [ProcessId(*process) for process in processes]
    if line is None:
        check(experiment, process_ids, NO_STEPS, declared=declared)
    else:
        with pytest.raises(ConfigError) as raised:
            check(experiment, process_ids, NO_STEPS, declared=declared)
        (problem,) = raised.value.problems
        assert problem.startswith("fault.x.")
        assert line in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "precision=mixed_float16",
        "model={_target_:tests.support.toy_models.finite} ~model.width ~model.dropout "
        "~model.batch_norm ~model.synchronized ~model.l2",
        "strategy=mirrored strategy.virtual_devices=2 batch.accumulate=2",
    ],
    ids=["float16", "layers that remove NaN", "two replicas"],
)
def test_injected_nan_reaches_loss_of_its_step(tmp_path, options):
    with pytest.raises(NonFiniteError, match=r"^the loss became nan after 4 steps; "):
        train(tmp_path, "+fault.mine={action:nan,at:5}", *options.split())
