"""What the chief waits for before it commits a checkpoint of a run in a store."""

from __future__ import annotations

import hashlib
import importlib
import sys

import pytest

from tests.support.object_stores import write_checkpoint
from trainer.cli.compose import compose
from trainer.cluster.fault_injection import Faults
from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster
from trainer.runs import provenance, upload_note
from trainer.runs.upload_note import write_note
from trainer.worker.before_commit import before_commit
from trainer.worker.context import WorkerContext


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


def call_of(run_dir, stop):
    channel = Channel(lambda message: None)
    experiment = compose(["runs_dir=s3://bucket/runs"])
    context = WorkerContext(experiment, run_dir, channel, Cluster(), stop.is_requested)
    return before_commit(context, Faults({}, run_dir, Cluster(), channel, ()))


@pytest.mark.parametrize("at", [0, 1, 3])
def test_stop_request_ends_the_wait_for_the_upload(tmp_path, monkeypatch, at):
    write_checkpoint(tmp_path, 2)
    write_note(tmp_path, 0)
    stop = Stop(at)
    monkeypatch.setattr(upload_note.time, "sleep", stop.wait)
    call_of(tmp_path, stop)()
    assert stop.waits == at


def test_commit_waits_for_the_upload_of_the_checkpoint_before(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 2)
    write_note(tmp_path, 0)
    monkeypatch.setattr(upload_note.time, "sleep", lambda secs: write_note(tmp_path, 2))
    call_of(tmp_path, Stop(99))()
    assert upload_note._has(tmp_path, 2)


def test_commit_records_the_code_as_it_was_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("early_net", "late_net"):
        (tmp_path / f"{name}.py").write_text("width = 1\n")
    write_checkpoint(tmp_path, 2)
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
