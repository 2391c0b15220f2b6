"""The run directory: found by identity, described once, locked by one process at a time."""

import json
import os
import sys
from pathlib import Path

import pytest
import tensorflow as tf
import yaml

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.config import loading
from trainer.config.directions import Directions
from trainer.errors import ConfigError, DamagedError
from trainer.files import is_locked
from trainer.runs import directory, provenance
from trainer.runs.directory import join_run, lock_file, open_run, read_result
from trainer.runs.identity import run_name, run_path
from trainer.worker.run import SavedRun
from trainer.worker.run_checkpointer import RunCheckpointer


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory; a lock is tried once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(directory, "_LOCK_WAIT_SECS", -1.0)
    return tmp_path


def open_with(*overrides):
    return open_run(compose(list(overrides)), list(overrides), None)


def test_open_run_describes_a_new_run_once(here):
    experiment = compose(["seed=3"])
    run = open_run(experiment, ["seed=3"], "/own")
    assert run.is_new
    assert run.path.name == run_name(experiment)
    assert str(run.path.parent) == "runs"
    assert sorted(os.listdir(run.path)) == [".lock", "config.yaml", "run.json"]
    assert loading.restore(yaml.safe_load((run.path / "config.yaml").read_text())) == experiment
    described = json.loads((run.path / "run.json").read_text())
    expected = {
        "overrides": ["seed=3"], "config_dir": "/own", "argv": sys.argv, "lineage": [],
        "git": None, "devices": None, "num_replicas": None,
    }  # fmt: skip
    assert expected.items() <= described.items()
    assert described["versions"].keys() >= {"tensorflow", "tf-keras", "hydra-core", "numpy"}
    run.release()
    before = (run.path / "run.json").read_bytes()
    again = open_run(experiment, ["seed=3", "name=null"], None)
    assert (again.path, again.is_new) == (run.path, False)
    assert (run.path / "run.json").read_bytes() == before
    again.release()
    (run.path / "config.yaml").unlink()  # as before its command has written it
    again = open_run(experiment, ["seed=3"], None)
    assert (again.is_new, (run.path / "config.yaml").exists()) == (True, True)
    again.release()


def test_open_run_rejects_a_run_in_use_with_the_process_id(here):
    run = open_with()
    for options in ([], ["resume=never"]):
        with pytest.raises(ConfigError, match=rf"^{run.path} is in use .*pid {os.getpid()}"):
            open_with(*options)
    assert os.listdir("runs") == [run.path.name]
    run.release()
    open_with().release()


def test_resume_never_moves_the_old_run_aside(here):
    names = []
    for _ in range(3):
        run = open_with("resume=never")
        assert run.is_new
        (run.path / "checkpoints").mkdir()
        names.append(run.path.name)
        run.release()
    assert len(set(names)) == 1
    assert sorted(os.listdir("runs")) == [names[0], f"{names[0]}.old-1", f"{names[0]}.old-2"]
    assert all((here / "runs" / name / "checkpoints").is_dir() for name in os.listdir("runs"))


def test_discard_removes_a_new_directory_with_its_new_parents_and_nothing_else(here):
    (here / "mine").mkdir()
    run = open_with(f"runs_dir={here}/mine/a/b")
    run.discard()
    run.release()
    assert os.listdir(here) == ["mine"]
    assert os.listdir(here / "mine") == []
    first, second = open_with(), open_with("seed=1")
    second.discard()
    assert os.listdir("runs") == [first.path.name]
    second.release()
    (first.path / "checkpoints").mkdir()
    first.discard()  # it was trained
    first.release()
    (first.path / "checkpoints").rmdir()
    again = open_with()
    again.discard()  # another command has created it
    assert first.path.is_dir()
    again.release()


def test_directory_that_has_the_hash_of_another_run_is_refused(here):
    epochs = open_with("train.epochs=2")  # which a continued run may change
    epochs.release()
    epochs.path.rename(run_path(compose([])))
    with pytest.raises(ConfigError, match="is of another run, whose values have the same hash"):
        open_with()


def test_open_run_rejects_other_values_line_by_line(here):
    run = open_with()
    run.release()
    experiment = compose([f"resume={run.path}", "batch.global_size=64", "seed=2"])
    with pytest.raises(ConfigError) as caught:
        open_run(experiment, [], None)
    assert caught.value.problems[1:3] == ("  seed: 0 -> 2", "  batch.global_size: 128 -> 64")
    assert "resume_allow=[seed,batch.global_size]" in caught.value.problems[3]
    # The error leaves no lock and changes nothing.
    again = open_with()
    assert json.loads((run.path / "run.json").read_text())["lineage"] == []
    again.release()


def continue_run(path, *overrides, saved=None):
    """Continue a run, with a checkpoint at step `saved` or none; return the messages."""
    run = open_run(compose([f"resume={path}", *overrides]), list(overrides), None)
    messages = run.record_continuation(list(overrides), None)
    if saved is not None:
        (path / "checkpoints").mkdir(exist_ok=True)
        (path / "checkpoints" / f"ckpt-{saved}.json").write_text("{}")
    run.withdraw()
    run.release()
    return messages


def lineage(path):
    return json.loads((path / "run.json").read_text())["lineage"]


def test_allowed_change_becomes_part_of_the_run(here):
    run = open_with()
    run.release()
    allowed = "resume_allow=[seed]"
    assert continue_run(run.path, "seed=2", allowed, saved=5) == ["Changed: seed: 0 -> 2"]
    (entry,) = lineage(run.path)
    assert (entry["overrides"], entry["checkpoint"]) == (["seed=2", allowed], None)
    assert entry["changes"] == [{"key": "seed", "before": 0, "now": 2}]
    assert continue_run(run.path, "seed=2", saved=6) == []
    assert (lineage(run.path)[1]["checkpoint"], lineage(run.path)[1]["changes"]) == (5, [])
    with pytest.raises(ConfigError, match=r"seed: 2 -> 3\nleave it as it was"):
        continue_run(run.path, "seed=3")
    # The first command still finds the directory, and must not undo the change.
    with pytest.raises(ConfigError, match=r"seed: 2 -> 0\ncontinue as it was with resume="):
        open_with()
    assert continue_run(run.path, "seed=0", allowed, saved=7) == ["Changed: seed: 2 -> 0"]
    open_with().release()


def test_withdraw_removes_a_change_without_a_checkpoint(here):
    run = open_with()
    run.release()
    (run.path / "run.json").unlink()  # which begins anew
    longer = ["train.steps=99", "strategy=mirrored", "checkpoint.keep=9"]
    assert continue_run(run.path, *longer, saved=5) == []
    changed = {change["key"] for change in lineage(run.path)[0]["changes"]}
    assert changed >= {"train.steps", "strategy._target_", "checkpoint.keep"}
    assert continue_run(run.path, "seed=2", "resume_allow=[seed]") == ["Changed: seed: 0 -> 2"]
    assert len(lineage(run.path)) == 1
    open_with().release()


def test_configuration_that_was_changed_is_written_anew_or_refused(here):
    run = open_with()
    run.release()
    path = run.path / "config.yaml"
    written = path.read_text()
    path.write_text(written.replace("seed: 0", "seed: 7", 1))
    with pytest.raises(DamagedError, match="cannot be read: its content has changed"):
        open_with(f"resume={run.path}")
    again = open_with()
    (repair,) = again.repairs
    assert "it is config.yaml.damaged-1 now, and was rewritten" in repair
    assert path.read_text() == written
    again.release()


def test_run_is_moved_aside_while_it_is_locked(here, monkeypatch):
    run = open_with()
    run.release()
    locked = []
    rename = Path.rename

    def watched(self, target):
        locked.append(is_locked(lock_file(self)))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    again = open_with("resume=never")
    assert (locked, again.old_run) == ([True], run.path.with_name(f"{run.path.name}.old-1"))
    again.release()


@pytest.mark.parametrize(
    ("recorded", "asked", "is_finished"),
    [
        ({"steps": None, "epochs": 3}, "train.epochs=2", True),
        ({"steps": 30, "epochs": None}, "train.steps=31", False),
        # An epoch has 11.25 steps.
        ({"steps": None, "epochs": 3}, "train.steps=30", True),
        ({"steps": None, "epochs": 3}, "train.steps=31", False),
        ({"steps": 30, "epochs": None}, "train.epochs=2", True),
        ({"steps": 30, "epochs": None}, "train.epochs=3", False),
    ],
)
def test_result_of_a_longer_training_counts(here, recorded, asked, is_finished):
    run = open_with("train.steps=30")
    assert read_result(run.path, compose([asked])) is None
    provenance.update(run.path, total_steps=30, steps_per_epoch=11.25)
    (run.path / "result.json").write_text(json.dumps({"step": 30, "train": recorded}))
    assert (read_result(run.path, compose([asked])) is not None) == is_finished
    (run.path / "result.json").write_text('{"step": 30, "tr')
    assert read_result(run.path, compose([asked])) is None
    run.release()


def test_step_past_is_that_of_a_checkpoint_beyond_the_length(here):
    run = open_with("train.epochs=3")
    assert run.step_past(compose(["train.steps=1"])) is None
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "ckpt-23.json").write_text("{}")
    assert run.step_past(compose(["train.epochs=2"])) is None  # it knows no epochs yet
    provenance.update(run.path, total_steps=34, steps_per_epoch=11.25)
    lengths = ["train.epochs=2", "train.epochs=3", "train.steps=22", "train.steps=23"]
    assert [run.step_past(compose([length])) for length in lengths] == [None, None, 23, None]
    assert run.step_past(compose(["train.epochs=1"])) == 23
    run.release()


def test_command_saves_removes_and_withdraws_nothing_of_another_host(here):
    run = open_with()
    run.record_continuation([], None)
    saved = SavedRun(compose([]), run.path, Channel(lambda message: None))
    commit = RunCheckpointer(saved, {"a": tf.Variable(1.0)}, Directions()).before_commit
    commit()
    run.check_lock()
    lock_file(run.path).write_text("7 elsewhere 0123")  # whose holder is another host
    for check in (run.check_lock, commit):
        with pytest.raises(ConfigError, match=r"by another process \(pid 7 on elsewhere\)"):
            check()
    join_run(compose([]), "worker-1").check_lock()  # which has no lock
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    run.withdraw()
    run.discard()
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
    run.release()
