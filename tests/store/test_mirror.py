"""The lease and the mirror of a run: when it is taken over, and stores that fail."""

import os
import queue
import shutil
import threading
from dataclasses import replace

import pytest

from tests.support.object_stores import MemoryStore, write_checkpoint
from trainer.runs import checkpoint_marker
from trainer.store import lease, remote_files
from trainer.store.lease import Lease, LeaseHeldError, LeaseLostError, Manifest, read_manifest
from trainer.store.mirror import Mirror
from trainer.store.object_store import StoreError
from trainer.store.remote_files import is_away, wait_for_upload


@pytest.fixture(autouse=True)
def without_fsync(monkeypatch):
    """No power cut is tested here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def new_run(path):
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("a: 1\n")
    (path / "metrics.jsonl").write_text("")
    return path


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def run_dir(tmp_path):
    return new_run(tmp_path / "run")


def take(store, name, ended=(), lease_secs=60.0):
    return Lease.acquire(store, name, ended, lease_secs, sleep=lambda secs: None)


def mirror_of(store, lease, path, retry_secs=0.0):
    return Mirror(store, lease, path, retry_secs, lambda line: None, lambda: None)


def brought(store, folder):
    """Return the checkpoints that a machine with an empty disk gets, and what was wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    manifest, _ = read_manifest(store)
    problems = remote_files.download(store, manifest, folder)
    return checkpoint_marker.committed_steps(folder / "checkpoints"), problems, manifest


def test_lease_is_taken_over_when_its_holder_is_silent_or_has_released_it(store):
    silent = take(store, "first")
    waited = []
    second = Lease.acquire(store, "second", (), 0.01, waited.append)
    assert waited == ["first"]
    assert second.manifest.number == 2
    with pytest.raises(LeaseLostError):
        silent.renew()
    second.release()
    waited.clear()
    third = Lease.acquire(store, "third", (), 3600.0, waited.append)
    assert (third.manifest.number, waited) == (3, [])
    with pytest.raises(LeaseHeldError) as refused:
        Lease.acquire(store, "fourth", (), 3600.0, sleep=lambda secs: third.renew())
    assert refused.value.holder == "third"

    def release(secs):
        third.change(lambda manifest: replace(manifest, files={"config.yaml": 1}, is_free=True))

    fourth = Lease.acquire(store, "fourth", (), 3600.0, sleep=release)
    assert fourth.before.files == {"config.yaml": 1}


@pytest.mark.parametrize("secs", [0.2, 60.0])
def test_silent_holder_is_given_its_time(store, monkeypatch, secs):
    clock = [100.0]
    monkeypatch.setattr(lease.time, "monotonic", lambda: clock[0])

    def sleep(passed):
        clock[0] += passed

    take(store, "first")
    Lease.acquire(store, "second", (), secs, sleep=sleep)
    assert clock[0] == 100.0 + secs


def test_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(store, run_dir, tmp_path):
    mirror = mirror_of(store, take(store, "first"), run_dir)
    for step in (1, 2):
        write_checkpoint(run_dir, step)
        mirror._upload()
    (data,) = [name for name in store.objects if "ckpt-2.data" in name]
    store.objects[data] = (b"other", "x")
    manifest, _ = read_manifest(store)
    problems = remote_files.download(store, manifest, tmp_path / "other")
    assert len(problems) == 1
    assert "step 2" in problems[0]
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        Manifest.decode(b"[]")
    assert checkpoint_marker.verify(tmp_path / "other" / "checkpoints", 1) is None


def test_mirror_tells_what_a_store_that_stays_away_lacks(store, run_dir):
    lease = take(store, "first")
    write_checkpoint(run_dir, 1)
    told = threading.Event()
    mirror = Mirror(store, lease, run_dir, 0.0, lambda line: told.set(), lambda: None)
    mirror._upload()

    def away(method):
        raise StoreError("no connection")

    store.before = away
    mirror.start()
    write_checkpoint(run_dir, 2)
    assert told.wait(60)
    assert (run_dir / ".uploaded").read_text() == "away"
    problem = mirror.finish()
    assert "no connection" in problem
    assert "its newest checkpoint is of step 1" in problem
    assert read_manifest(store)[0].is_free is False


def test_unexpected_error_is_reported_and_ends_no_thread(store, run_dir):
    lease = take(store, "first")
    told = queue.SimpleQueue()
    mirror = Mirror(store, lease, run_dir, 600.0, told.put, lambda: None)

    def fail(method):
        if method == "upload":
            raise KeyError("ETag")
        return False

    store.before = fail
    write_checkpoint(run_dir, 1)
    mirror.start()
    mirror.renew_every(0.01)
    line = told.get(timeout=60)
    assert "the store cannot be written (KeyError: 'ETag'); it has no checkpoint" in line
    wait_for_upload(run_dir, lambda: None)
    assert "KeyError: 'ETag'" in mirror.finish()
    assert not any(thread.is_alive() for thread in mirror._threads)


def test_objects_of_removed_checkpoints_and_files_are_removed(store, run_dir, tmp_path):
    mirror = mirror_of(store, take(store, "first"), run_dir)
    (run_dir / "failure.json").write_text("{}")
    for step in range(1, 6):
        write_checkpoint(run_dir, step)
        mirror._upload()
    (run_dir / "failure.json").unlink()
    mirror._upload()
    folders = {name.split("/")[1].rsplit("-", 1)[0] for name in store.names("checkpoints/")}
    assert folders == {"ckpt-4", "ckpt-5"}
    assert store.names("files/1/failure") == []
    # The note names each checkpoint that the store has.
    checkpoint_marker.remove(run_dir / "checkpoints", 5)  # a rollback
    wait_for_upload(run_dir, lambda: pytest.fail("it waits"))
    (run_dir / ".uploaded").write_text("away")
    (run_dir / "metrics.jsonl").write_text("{}")
    mirror._upload()
    assert not is_away(run_dir)
    shutil.rmtree(run_dir)  # by hand: that removes nothing from the store
    mirror._upload()
    assert brought(store, tmp_path / "other")[0] == [4]


def test_store_keeps_a_checkpoint_while_the_folder_has_only_newer_ones(store, run_dir, tmp_path):
    mirror = mirror_of(store, take(store, "first"), run_dir)
    write_checkpoint(run_dir, 1)
    mirror._upload()
    write_checkpoint(run_dir, 2)
    uploads = []

    def go_on(method):
        """Commit two more during the upload of a checkpoint, as after a stop request."""
        if not uploads:
            for step in (3, 4):
                write_checkpoint(run_dir, step, keep=1)
        uploads.append(method)
        assert brought(store, tmp_path / "other")[0]
        return False

    store.before = go_on
    mirror._upload()
    assert brought(store, tmp_path / "other")[0] == [1, 2]
    mirror._upload()
    assert brought(store, tmp_path / "other")[0] == [4]


def test_growing_file_is_uploaded_a_few_times_in_all(store, run_dir):
    (run_dir / "logs").mkdir()
    mirror = mirror_of(store, take(store, "first"), run_dir)
    uploaded, upload = [0], store.upload

    def counted(path, name):
        if name.endswith(".log"):
            uploaded[0] += path.stat().st_size
        upload(path, name)

    store.upload = counted
    with open(run_dir / "logs" / "worker-0.log", "wb", buffering=0) as log:
        for step in range(1, 401):
            log.write(b"x" * 10_000)
            if step % 100 == 0:
                write_checkpoint(run_dir, step)
            (run_dir / "metrics.jsonl").write_text(f"{step}\n" * 10_000)
            mirror._upload()
            size = len(store.objects["files/1/logs/worker-0.log"][0])
            assert size >= 0.79 * step * 10_000
            if step % 100 == 0:  # the curves reach as far as the checkpoint
                assert store.objects["files/1/metrics.jsonl"][0].startswith(f"{step}".encode())
    mirror.start()
    assert mirror.finish() is None
    assert len(store.objects["files/1/logs/worker-0.log"][0]) == 4_000_000
    assert uploaded[0] <= 6 * 4_000_000
