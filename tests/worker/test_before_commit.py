"""What the chief waits for before it commits a checkpoint of a run in a store."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import sys

import pytest
import tensorflow as tf

from tests.support.object_stores import write_checkpoint
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Line, Phase
from trainer.config.directions import Directions
from trainer.runs import checkpoint_marker, provenance
from trainer.store import remote_files
from trainer.store.remote_files import checkpoint_folder, wait_for_upload, write_note
from trainer.worker.run import SavedRun
from trainer.worker.run_checkpointer import RunCheckpointer


class Stop:
    """A stop request that comes at one of the waits for the store.

    Args:
        at: which; 0: before the first.
    """

    def __init__(self, at):
        self.waits = 0
        self._at = at

    def wait(self, secs):
        self.waits += 1
        assert self.waits <= self._at, "the wait goes on"

    def is_requested(self):
        return self.waits >= self._at


def call_of(run_dir, stop, channel=None):
    channel = channel or Channel(lambda message: None)
    experiment = compose(["runs_dir=s3://bucket/runs"])
    run = SavedRun(experiment, run_dir, channel, stop_requested=stop.is_requested)
    return RunCheckpointer(run, {"a": tf.Variable(1.0)}, Directions()).before_commit


def folder_of(run_dir, step):
    return checkpoint_folder(run_dir / "checkpoints", step)


@pytest.mark.parametrize("at", [0, 3])
def test_stop_request_ends_the_wait_for_the_upload(tmp_path, monkeypatch, at):
    write_checkpoint(tmp_path, 2)
    write_note(tmp_path, ())
    stop = Stop(at)
    monkeypatch.setattr(remote_files.time, "sleep", stop.wait)
    call_of(tmp_path, stop)()
    assert stop.waits == at


def test_commit_waits_for_the_upload_of_the_checkpoint_before(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 2)
    write_note(tmp_path, ())
    folder = folder_of(tmp_path, 2)
    waits = []

    def upload(secs):
        waits.append(secs)
        write_note(tmp_path, [folder])

    monkeypatch.setattr(remote_files.time, "sleep", upload)
    call_of(tmp_path, Stop(99))()
    assert len(waits) == 1


def test_rollback_past_a_checkpoint_that_the_store_has_awaits_nothing(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 2)
    write_checkpoint(tmp_path, 4)
    write_note(tmp_path, [folder_of(tmp_path, step) for step in (2, 4)])
    checkpoint_marker.remove(tmp_path / "checkpoints", 4)
    stop = Stop(0)
    monkeypatch.setattr(remote_files.time, "sleep", stop.wait)
    wait_for_upload(tmp_path, lambda: None)
    assert stop.waits == 0


def test_checkpoint_of_a_step_that_was_made_again_is_awaited(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 2)
    write_note(tmp_path, ["ckpt-2-0123456789abcdef"])
    stop = Stop(1)
    monkeypatch.setattr(remote_files.time, "sleep", stop.wait)
    call_of(tmp_path, stop)()
    assert stop.waits == 1


@pytest.mark.parametrize(("phase", "beats"), [("save", 60), ("train", 0)])
def test_wait_beside_another_phase_is_no_sign_of_life(tmp_path, monkeypatch, phase, beats):
    write_checkpoint(tmp_path, 2)
    now = itertools.count()
    messages = []
    channel = Channel(messages.append, lambda: float(next(now)))
    stop = Stop(3000)
    monkeypatch.setattr(remote_files.time, "sleep", stop.wait)
    call = call_of(tmp_path, stop, channel)
    channel.phase(phase, 3)
    messages.clear()
    call()
    assert messages == [Phase("save", 3)] * beats + [
        Line("warning: the next checkpoint waits for the upload of that of step 2")
    ]


def test_commit_records_the_code_as_it_was_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("early_net", "late_net"):
        (tmp_path / f"{name}.py").write_text("width = 1\n")
    write_checkpoint(tmp_path, 2)
    write_note(tmp_path, [folder_of(tmp_path, 2)])
    provenance.create(tmp_path, [], None)
    importlib.import_module("early_net")
    call = call_of(tmp_path, Stop(0))
    (tmp_path / "early_net.py").write_text("width = 2\n")
    importlib.import_module("late_net")
    call()
    code = provenance.read(tmp_path)["code"]
    written = hashlib.sha256(b"width = 1\n").hexdigest()
    assert [code[name]["sha256"] for name in ("early_net", "late_net")] == [written, written]
    for name in ("early_net", "late_net"):
        del sys.modules[name]
