"""What the chief of a run in a store waits for, and what other hosts download from there."""

import hashlib
import importlib
import itertools
import sys
from dataclasses import replace

import pytest
import tensorflow as tf

from tests.support.object_stores import MemoryStore, write_checkpoint
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Line, Phase
from trainer.cluster.spec import RAY, Cluster, ProcessId
from trainer.config.directions import Directions
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.errors import CheckpointError
from trainer.runs import checkpoint_marker, provenance
from trainer.runs.checkpoint_marker import committed_steps, marker_digest
from trainer.store import remote_files
from trainer.store.lease import Lease
from trainer.store.object_store import StoreError
from trainer.store.remote_files import checkpoint_folder, write_note
from trainer.worker import run_checkpointer
from trainer.worker.run import SavedRun
from trainer.worker.run_checkpointer import RunCheckpointer


class Stop:
    """A stop request that comes at one of the waits for the store; 0: before the first."""

    def __init__(self, at):
        self.waits = 0
        self._at = at

    def wait(self, secs):
        self.waits += 1
        assert self.waits <= self._at, "the wait continues"

    def is_requested(self):
        return self.waits >= self._at


def call_of(run_dir, stop, channel=None):
    channel = channel or Channel(lambda message: None)
    run = SavedRun(
        compose(["runs_dir=s3://bucket/runs"]), run_dir, channel, stop_requested=stop.is_requested
    )
    return RunCheckpointer(run, {"a": tf.Variable(1.0)}, Directions()).before_commit


def folder_of(run_dir, step):
    return checkpoint_folder(run_dir / "checkpoints", step)


OTHER = "ckpt-2-0123456789abcdef"
"""The folder of a checkpoint of step 2 that was made before."""


@pytest.mark.parametrize(("uploaded", "at"), [((), 0), ((), 3), ((OTHER,), 1)])
def test_commit_waits_for_the_upload_until_a_stop(tmp_path, monkeypatch, uploaded, at):
    write_checkpoint(tmp_path, 2)
    write_note(tmp_path, uploaded)
    stop = Stop(at)
    monkeypatch.setattr(remote_files.time, "sleep", stop.wait)
    call_of(tmp_path, stop)()
    assert stop.waits == at


def test_commit_waits_for_the_upload_of_the_checkpoint_before(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 2)
    write_note(tmp_path, ())
    stop = Stop(99)

    def upload(secs):
        stop.wait(secs)
        write_note(tmp_path, [folder_of(tmp_path, 2)])

    monkeypatch.setattr(remote_files.time, "sleep", upload)
    call_of(tmp_path, stop)()
    assert stop.waits == 1


@pytest.mark.parametrize(("phase", "beats"), [("save", 60), ("train", 0)])
def test_wait_during_another_phase_is_no_sign_of_life(tmp_path, monkeypatch, phase, beats):
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


DECLARED = "TF_CONFIG"


def save(directory, step, content):
    """Commit a checkpoint; return the SHA-256 of its marker."""
    directory.mkdir(parents=True, exist_ok=True)
    prefix = checkpoint_marker.begin_write(directory, step)
    (directory / f"{prefix}.index").write_bytes(content)
    checkpoint_marker.commit(directory, step, None)
    return marker_digest(directory, step)


@pytest.fixture
def store(monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(run_checkpointer, "open_store", lambda address: store)
    return store


class Chief:
    """The chief's disk, and what it uploads."""

    def __init__(self, directory, store):
        self.directory = directory
        self._store = store
        self._lease = Lease.acquire(store, "chief", [], 60.0)

    def upload(self, step):
        folder = remote_files.checkpoint_folder(self.directory, step)
        staged = self.directory.with_name("staged")
        assert remote_files.stage_checkpoint(self.directory, step, staged) == folder
        remote_files.upload_checkpoint(self._store, staged, step, folder)
        self._lease.change(
            lambda manifest: replace(manifest, checkpoints={**manifest.checkpoints, step: folder})
        )

    def upload_late(self, monkeypatch, step):
        """Upload when it was waited for three times; return the waits."""
        waits = []

        def sleep(secs):
            waits.append(secs)
            if len(waits) == 3:
                self.upload(step)

        monkeypatch.setattr(run_checkpointer.time, "sleep", sleep)
        return waits


@pytest.fixture
def chief(tmp_path, store):
    return Chief(tmp_path / "chief" / "checkpoints", store)


def checkpointer_of(run_dir, process, source=DECLARED, hosts=("a:1", "b:1")):
    experiment = compose(["runs_dir=s3://bucket/runs", "store.retry_secs=0"])
    experiment.resume = "s3://bucket/runs/run"
    cluster = Cluster(process, {"worker": list(hosts)}, source)
    run = SavedRun(experiment, run_dir, Channel(lambda message: None), cluster)
    return RunCheckpointer(run, {"a": tf.Variable(1.0)}, Directions())


def fetch_on(tmp_path, process=ProcessId("worker", 1), source=DECLARED):  # noqa: B008
    """Return the function of a process, and the folder of its checkpoints."""
    checkpointer = checkpointer_of(tmp_path / "other", process, source)
    return checkpointer.before_restore, checkpointer.directory


def test_checkpoint_of_another_host_replaces_what_was_there(tmp_path, chief):
    fetch, directory = fetch_on(tmp_path)
    save(directory, 2, b"old")
    save(directory, 4, b"of another attempt")
    digest = save(chief.directory, 4, b"right")
    chief.upload(4)
    fetch(4, digest)
    assert committed_steps(directory) == [4]
    assert (directory / "ckpt-4.index").read_bytes() == b"right"


def test_checkpoint_that_is_there_is_not_brought_again(tmp_path, store, chief):
    fetch, directory = fetch_on(tmp_path)
    digest = save(directory, 4, b"right")
    fetch(4, digest)
    (directory / "ckpt-4.index").write_bytes(b"wrong")
    save(chief.directory, 4, b"right")
    (chief.directory / "ckpt-4.json").write_bytes((directory / "ckpt-4.json").read_bytes())
    chief.upload(4)
    fetch(4, digest)
    assert (directory / "ckpt-4.index").read_bytes() == b"right"


def test_upload_that_is_not_finished_is_waited_for(tmp_path, monkeypatch, chief):
    fetch, directory = fetch_on(tmp_path)
    save(chief.directory, 4, b"of another attempt")
    chief.upload(4)
    digest = save(chief.directory, 4, b"right")
    waits = chief.upload_late(monkeypatch, 4)
    fetch(4, digest)
    assert len(waits) == 3
    assert (directory / "ckpt-4.index").read_bytes() == b"right"


@pytest.mark.parametrize(
    ("process", "source"),
    [
        (ProcessId("worker", 0), DECLARED),
        (ProcessId("worker", 1), "local"),
        (ProcessId("worker", 1), RAY),
    ],
)
def test_process_that_uses_the_chiefs_folder_brings_nothing(tmp_path, process, source):
    fetch, directory = fetch_on(tmp_path, process, source)
    save(directory, 2, b"older")
    fetch(4, "0" * 64)
    assert committed_steps(directory) == [2]


def test_damage_and_failing_store_are_errors_that_name_step_and_address(
    tmp_path, monkeypatch, store, chief
):
    fetch, _ = fetch_on(tmp_path)
    digest = save(chief.directory, 4, b"right")
    chief.upload(4)
    (name,) = (name for name in store.objects if name.endswith("ckpt-4.index"))
    store.objects[name] = (b"wrong", "1")
    start = "the checkpoint of step 4 could not be downloaded from s3://bucket/runs/run: "
    with pytest.raises(CheckpointError, match=f"{start}the content of ckpt-4.index has changed"):
        fetch(4, digest)

    def refuse(name):
        raise StoreError("refused")

    monkeypatch.setattr(store, "read", refuse)
    with pytest.raises(CheckpointError, match=f"{start}refused"):
        fetch(4, digest)


CHIEF = ProcessId("worker", 0)


def test_chief_waits_until_others_can_bring_its_checkpoint(tmp_path, monkeypatch, chief):
    checkpointer = checkpointer_of(chief.directory.parent, CHIEF)
    save(chief.directory, 4, b"of another attempt")
    chief.upload(4)
    save(chief.directory, 4, b"right")
    waits = chief.upload_late(monkeypatch, 4)
    assert checkpointer.before_offer(4) == ""
    assert len(waits) == 3


def test_chief_whose_command_cannot_upload_ends_all_hosts(tmp_path, monkeypatch, chief):
    checkpointer = checkpointer_of(chief.directory.parent, CHIEF)
    save(chief.directory, 4, b"right")
    monkeypatch.setattr(run_checkpointer.time, "sleep", lambda secs: write_note(run_dir, None))
    run_dir = chief.directory.parent
    message = checkpointer.before_offer(4)
    assert message == (
        "the checkpoint of step 4 is not in s3://bucket/runs/run, from where the other hosts "
        f"download it: the store cannot be written; {run_dir} of the chief's host has it"
    )
    variables = {"a": tf.Variable(1.0)}
    Checkpointer(tmp_path / "saved", variables).save(2, None)
    restoring = Checkpointer(tmp_path / "saved", variables)
    restoring.before_offer = lambda step: f"{step}: {message}"
    with pytest.raises(CheckpointError, match=r"^2: the checkpoint of step 4 is not in s3:"):
        restoring.restore_latest()


@pytest.mark.parametrize(("source", "hosts"), [("local", "ab"), (DECLARED, "a")])
def test_chief_without_other_hosts_does_not_wait(tmp_path, source, hosts):
    hosts = [f"{host}:1" for host in hosts]
    checkpointer = checkpointer_of(tmp_path, CHIEF, source, hosts)
    assert checkpointer.before_offer(4) == ""
