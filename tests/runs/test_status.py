"""The status of a run, read from its directory; failure.json, which a crash leaves there."""

import fcntl
import json
from contextlib import closing

import pytest

from trainer.cli.compose import compose
from trainer.files import Lock
from trainer.runs import checkpoint_marker, provenance
from trainer.runs.directory import open_run
from trainer.runs.identity import Change
from trainer.runs.status import RunStatus, State, clear_failure, record_failure, run_status

METRICS = {"loss": 0.5, "accuracy": 0.75}


@pytest.fixture
def path(tmp_path):
    """A run without a lock and without files."""
    run = open_run(
        compose([f"runs_dir={tmp_path}", "train.epochs=null", "train.steps=20"]), [], None
    )
    run.release()
    (run.path / "checkpoints").mkdir()
    return run.path


def finish(path, **train):
    content = {"step": 20, "metrics": METRICS, "train": {"steps": 20, "epochs": None, **train}}
    (path / "result.json").write_text(json.dumps(content))


def write(path, *lines, name="metrics.jsonl"):
    (path / name).write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )


def test_run_without_a_result_is_waiting_stopped_or_running(path):
    assert run_status(path / "none") == RunStatus(State.WAITING)
    with (path / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # another reader
        assert run_status(path) == RunStatus(State.WAITING)
    checkpoint_marker.commit(path / "checkpoints", 5, METRICS)
    checkpoint_marker.commit(path / "checkpoints", 10, None)
    (path / "checkpoints" / "ckpt-15.index").touch()
    before = sorted(path.iterdir())
    assert run_status(path) == RunStatus(State.STOPPED, 10, METRICS)
    record_failure(path, "an earlier one")
    with closing(Lock.acquire(path / ".lock")):
        assert run_status(path) == RunStatus(State.RUNNING, 10, METRICS)
    clear_failure(path)
    assert sorted(path.iterdir()) == before


def test_metrics_come_from_the_newest_test_line(path):
    checkpoint_marker.commit(path / "checkpoints", 5, {"loss": 9.0})
    line = {"step": 5, "split": "test", "epoch": 1, "loss": 0.25}
    train = {"step": 6, "split": "train", "loss": 7.0}
    write(path, {**line, "step": 3, "loss": 1.0}, line, train, '{"step": 8, "spl')
    assert run_status(path) == RunStatus(State.STOPPED, 5, {"loss": 0.25})
    write(path, {"step": 7, "split": "test", "loss": 0.125}, name="evaluations.jsonl")
    assert run_status(path).metrics == {"loss": 0.125}


def test_run_with_a_shorter_result_is_not_done(path):
    finish(path)
    checkpoint_marker.commit(path / "checkpoints", 20, METRICS)
    changes = [Change("train.steps", 20, 30), Change("checkpoint.keep", 2, 3)]
    provenance.add_entry(path, [], None, 20, changes)
    assert run_status(path) == RunStatus(State.STOPPED, 20, METRICS)
    shorter = compose(["train.epochs=null", "train.steps=20"])
    assert run_status(path, shorter).state is State.DONE
    finish(path, steps=30)
    assert run_status(path).state is State.DONE
    assert run_status(path, shorter).state is State.DONE  # it has been trained that far
