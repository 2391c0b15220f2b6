"""The run directory: found by identity, described once, held by one process at a time."""

import errno
import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from trainer import config, provenance, rundir
from trainer.cli import compose
from trainer.errors import ConfigError, StorageError
from trainer.identity import run_name
from trainer.rundir import open_run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory; nobody waits for a lock."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rundir, "_LOCK_WAIT_SECS", -1.0)
    return tmp_path


def opened(*overrides):
    return open_run(compose(list(overrides)), list(overrides), None)


def test_a_new_run_is_described_once(here):
    experiment = compose(["seed=3"])
    run = open_run(experiment, ["seed=3"], "/own")
    assert run.is_new
    assert run.path.name == run_name(experiment)
    assert str(run.path.parent) == "runs"
    assert sorted(os.listdir(run.path)) == [".lock", "config.yaml", "run.json"]
    assert config.restore(yaml.safe_load((run.path / "config.yaml").read_text())) == experiment
    described = json.loads((run.path / "run.json").read_text())
    assert described["overrides"] == ["seed=3"]
    assert described["config_dir"] == "/own"
    assert described["argv"] == sys.argv
    assert described["versions"].keys() >= {"tensorflow", "tf-keras", "hydra-core", "omegaconf", "numpy"}
    assert (described["git"], described["devices"], described["num_replicas"], described["lineage"]) == (None, None, None, [])
    run.release()
    before = (run.path / "run.json").read_bytes()
    again = open_run(experiment, ["seed=3", "name=null"], None)
    assert (again.path, again.is_new) == (run.path, False)
    assert (run.path / "run.json").read_bytes() == before
    again.release()


def test_a_second_user_is_refused_and_told_who_holds_it(here):
    run = opened()
    with pytest.raises(ConfigError) as caught:
        opened()
    assert str(caught.value) == f"{run.path} is in use by another process (pid {os.getpid()}); wait for it, or stop it"
    run.release()
    opened().release()


def test_a_worker_that_inherited_the_lock_holds_it(here):
    run = opened()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(run.lock,))
    try:
        run.release()
        with pytest.raises(ConfigError, match="in use by another process"):
            opened()
    finally:
        child.communicate(b"\n")
    opened().release()


def test_another_process_is_refused(here):
    run = opened()
    code = (
        "from trainer import rundir\nfrom trainer.cli import compose\nrundir._LOCK_WAIT_SECS = -1.0\nrundir.open_run(compose([]), [], None)"
    )
    root = str(rundir.Path(rundir.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, timeout=60, check=False
    )
    expected = f"ConfigError: {run.path} is in use by another process (pid {os.getpid()}); wait for it, or stop it"
    assert done.stderr.splitlines()[-1].endswith(expected)
    run.release()


def test_never_moves_the_old_run_aside(here):
    names = []
    for _ in range(3):
        run = opened("resume=never")
        assert run.is_new
        (run.path / "checkpoints").mkdir()
        names.append(run.path.name)
        run.release()
    assert len(set(names)) == 1
    assert sorted(os.listdir("runs")) == [names[0], f"{names[0]}.old-1", f"{names[0]}.old-2"]
    assert all((here / "runs" / name / "checkpoints").is_dir() for name in os.listdir("runs"))


def test_a_run_in_use_is_not_moved_aside(here):
    run = opened()
    with pytest.raises(ConfigError, match="in use by another process"):
        opened("resume=never")
    assert os.listdir("runs") == [run.path.name]
    run.release()


def test_discard_removes_a_new_directory_and_what_was_made_for_it(here):
    (here / "mine").mkdir()
    run = opened(f"runs_dir={here}/mine/a/b")
    run.discard()
    run.release()
    assert os.listdir(here) == ["mine"]
    assert os.listdir(here / "mine") == []


def test_discard_leaves_other_runs(here):
    first, second = opened(), opened("seed=1")
    second.discard()
    assert os.listdir("runs") == [first.path.name]
    first.release()
    second.release()


def test_discard_leaves_what_was_there_or_was_trained(here):
    run = opened()
    (run.path / "checkpoints").mkdir()
    run.discard()
    assert run.path.is_dir()
    run.release()
    (run.path / "checkpoints").rmdir()
    again = opened()
    again.discard()
    assert again.path.is_dir()
    again.release()


def test_a_directory_whose_description_was_cut_short_is_described_anew(here):
    run = opened()
    run.release()
    (run.path / "config.yaml").unlink()
    again = opened()
    assert again.is_new
    assert (run.path / "config.yaml").exists()
    again.release()


def test_what_the_run_cannot_be_continued_with_is_refused_line_by_line(here):
    run = opened()
    run.release()
    experiment = compose([f"resume={run.path}", "batch.global_size=64", "seed=2"])
    with pytest.raises(ConfigError) as caught:
        open_run(experiment, [], None)
    assert caught.value.problems == (
        f"{run.path} was trained with other values:",
        "  seed: 0 -> 2",
        "  batch.global_size: 128 -> 64",
        "leave them as they were, allow them with resume_allow=[seed,batch.global_size], "
        f"or start a new run (init_from={run.path} takes its weights)",
    )
    # A refusal holds no lock and changes nothing.
    again = opened()
    assert json.loads((run.path / "run.json").read_text())["lineage"] == []
    again.release()


def test_a_named_run_may_be_continued_longer_and_on_other_hardware(here):
    run = opened()
    run.release()
    again = open_run(compose([f"resume={run.path}", "train.steps=99", "strategy=mirrored", "checkpoint.keep=9"]), [], None)
    assert (again.path, again.is_new) == (run.path, False)
    assert {change.key for change in again.changes} >= {"train.steps", "strategy._target_", "checkpoint.keep"}
    assert again.record_continue([], None) == []
    again.release()


def continued(path, *overrides, saved=None):
    """Continues a run, which comes to a checkpoint or to nothing; gives what is told."""
    run = open_run(compose([f"resume={path}", *overrides]), list(overrides), None)
    told = run.record_continue(list(overrides), None)
    if saved is not None:
        (path / "checkpoints").mkdir(exist_ok=True)
        (path / "checkpoints" / f"ckpt-{saved}.json").write_text("{}")
    run.withdraw()
    run.release()
    return told


def lineage(path):
    return json.loads((path / "run.json").read_text())["lineage"]


def test_an_allowed_change_is_part_of_the_run_from_then_on(here):
    run = opened()
    run.release()
    assert continued(run.path, "seed=2", "resume_allow=[seed]", saved=5) == ["Changed: seed: 0 -> 2"]
    (entry,) = lineage(run.path)
    assert entry["overrides"] == ["seed=2", "resume_allow=[seed]"]
    assert (entry["checkpoint"], entry["changes"]) == (None, [{"key": "seed", "before": 0, "now": 2}])
    assert continued(run.path, "seed=2", saved=6) == []
    assert (lineage(run.path)[1]["checkpoint"], lineage(run.path)[1]["changes"]) == (5, [])
    with pytest.raises(ConfigError, match=r"seed: 2 -> 3\nleave it as it was"):
        continued(run.path, "seed=3")
    # The first command finds the directory still, and must not fall back unasked.
    with pytest.raises(ConfigError, match=r"seed: 2 -> 0\ngo on as it was with resume="):
        opened()
    assert continued(run.path, "seed=0", "resume_allow=[seed]", saved=7) == ["Changed: seed: 2 -> 0"]
    opened().release()


def test_a_change_that_came_to_nothing_is_no_part_of_the_run(here):
    run = opened()
    run.release()
    assert continued(run.path, saved=5) == []
    assert continued(run.path, "seed=2", "resume_allow=[seed]") == ["Changed: seed: 0 -> 2"]
    assert len(lineage(run.path)) == 1
    opened().release()


def test_a_run_without_a_record_can_be_continued(here):
    run = opened()
    run.release()
    (run.path / "run.json").unlink()
    assert continued(run.path, "train.steps=9", saved=1) == []
    assert len(lineage(run.path)) == 1


def test_a_tampered_configuration_is_found(here):
    run = opened()
    run.release()
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 7", 1))
    with pytest.raises(ConfigError, match=r"was trained with other values:\n  seed: 7 -> 0\n"):
        opened()


def test_a_result_counts_for_the_length_that_was_asked_for(here):
    experiment = compose(["train.steps=6"])
    run = open_run(experiment, [], None)
    assert run.result(experiment) is None
    (run.path / "result.json").write_text(json.dumps({"step": 6, "train": {"steps": 6, "epochs": None}}))
    assert run.result(experiment)["step"] == 6
    assert run.result(compose(["train.steps=7"])) is None
    assert run.result(compose(["train.epochs=6"])) is None
    (run.path / "result.json").write_text('{"step": 6, "tr')
    assert run.result(experiment) is None
    run.release()


def test_the_same_batch_may_be_told_as_its_size_on_all_replicas(here):
    run = opened("batch.per_replica=16", "batch.global_size=null")
    provenance.complete(run.path, ["CPU:0"] * 3, 3, 100)
    run.release()
    opened(f"resume={run.path}", "batch.global_size=48", "batch.per_replica=null").release()
    with pytest.raises(ConfigError, match=r"batch.global_size"):
        opened(f"resume={run.path}", "batch.global_size=32", "batch.per_replica=null")


def test_a_directory_that_cannot_be_made_is_one_line(here, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.mkdir", full)
    with pytest.raises(StorageError) as caught:
        opened()
    assert re.fullmatch(r"runs/cnn-digits-\w{8} could not be written: No space left on device", str(caught.value))
