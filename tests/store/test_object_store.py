"""Stores: what a run needs of each, with real servers; S3 also through a faulty network."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from botocore.stub import Stubber

import trainer.store.schemes.s3
from tests.support.faulty_proxy import FaultyProxy
from tests.support.gcs_server import gcs_server
from tests.support.object_stores import MemoryStore, s3_environment, s3_server
from trainer.store.lease import Lease, LeaseLostError, read_manifest
from trainer.store.object_store import (
    ConflictError,
    MissingObjectError,
    StoreError,
    open_store,
    retry,
)

ROUNDS = 12


@pytest.fixture
def s3(tmp_path, monkeypatch):
    with s3_server(tmp_path) as port:
        use_s3(monkeypatch, port)
        yield port


def use_s3(monkeypatch, port):
    for name, value in s3_environment(port).items():
        monkeypatch.setenv(name, value)


def check_conditions(store):
    """Check that one version of an object is replaced, and no other."""
    with pytest.raises(ConflictError):
        store.replace("a", b"0", "1")
    first = store.replace("a", b"1", None)
    with pytest.raises(ConflictError):
        store.replace("a", b"2", None)
    assert store.read("a") == (b"1", first)
    second = store.replace("a", b"2", first)
    with pytest.raises(ConflictError):
        store.replace("a", b"3", first)
    assert store.read("a") == (b"2", second)


def check_objects(store, tmp_path):
    """Check the other methods of a store that has nothing in `folder`."""
    with pytest.raises(MissingObjectError):
        store.read("folder/a")
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 100)
    store.upload(file, "folder/b c")
    store.upload(file, "folder/d")
    store.download("folder/b c", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    with pytest.raises(MissingObjectError):
        store.download("folder/e", tmp_path / "copy")
    assert sorted(store.names("folder/")) == ["folder/b c", "folder/d"]
    assert store.folders() == ["folder"]
    store.delete(["folder/b c", "folder/e"])
    assert store.names("folder/") == ["folder/d"]


@pytest.mark.slow
def test_s3_keeps_the_contract(tmp_path, s3):
    check_conditions(open_store("s3://bucket/runs/one"))
    check_objects(open_store("s3://bucket/runs/one"), tmp_path)
    open_store("s3://bucket").replace("a", b"", None)
    assert open_store("s3://bucket/runs/one").names("folder/") == ["folder/d"]
    with pytest.raises(StoreError, match="NoSuchBucket") as missing:
        open_store("s3://none/runs").read("a")
    assert not missing.value.is_temporary


@pytest.mark.parametrize(
    ("code", "status", "is_temporary"),
    [("AccessDenied", 403, False), ("SlowDown", 503, True), ("NoSuchUpload", 404, True)],
)
def test_answer_of_s3_to_an_upload_says_whether_it_is_repeated(
    tmp_path, monkeypatch, code, status, is_temporary
):
    use_s3(monkeypatch, 1)
    file = tmp_path / "file"
    file.write_bytes(b"content")
    store = open_store("s3://bucket/runs")
    with Stubber(store._client) as stubber:
        stubber.add_client_error("put_object", code, http_status_code=status)
        with pytest.raises(StoreError, match=code) as refused:
            store.upload(file, "a")
    assert refused.value.is_temporary is is_temporary

    # It answers with success, but has not deleted the object.
    errors = [{"Key": "runs/a", "Code": "SlowDown", "Message": "no"}]
    monkeypatch.setattr(
        store, "_client", Mock(**{"delete_objects.return_value": {"Errors": errors}})
    )
    with pytest.raises(StoreError, match="SlowDown") as refused:
        store.delete(["a"])
    assert refused.value.is_temporary


@pytest.fixture
def gcs(monkeypatch):
    with gcs_server() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test")
        yield server


def test_google_client_and_store_in_memory_keep_the_contract(tmp_path, gcs):
    check_conditions(MemoryStore())
    check_objects(MemoryStore(), tmp_path)
    check_conditions(open_store("gs://bucket/runs/one"))
    check_objects(open_store("gs://bucket/runs/one"), tmp_path)
    assert gcs.conditions == 5


def test_download_from_google_that_was_damaged_on_the_way_may_be_repeated(tmp_path, gcs):
    store = open_store("gs://bucket/run")
    store.replace("a", b"1", None)
    for download in (lambda: store.read("a"), lambda: store.download("a", tmp_path / "copy")):
        gcs.damaged_downloads = 1
        with pytest.raises(StoreError, match="a was damaged on the way") as damaged:
            download()
        assert damaged.value.is_temporary
        download()


def commit(step, folder="a"):
    return lambda manifest: replace(manifest, checkpoints={**manifest.checkpoints, step: folder})


def repeat(function, *arguments):
    return retry(lambda: function(*arguments), 120.0, lambda secs: None)


def test_google_lease_survives_a_lost_answer_and_ends_with_another_holder(gcs):
    store = open_store("gs://bucket/run")
    lease = Lease.acquire(store, "first", [], 60.0)
    gcs.lost_answers = 1
    repeat(lease.change, commit(1))
    other = Lease.acquire(open_store("gs://bucket/run"), "second", ["first"], 60.0)
    with pytest.raises(LeaseLostError):
        lease.change(commit(2))
    other.change(commit(3))
    assert read_manifest(store)[0].checkpoints == {1: "a", 3: "a"}


@pytest.mark.slow
def test_s3_through_cuts_stalls_and_refusals_loses_no_commit(tmp_path, s3, monkeypatch):
    monkeypatch.setattr(trainer.store.schemes.s3, "_READ_TIMEOUT_SECS", 0.5)
    content = tmp_path / "content"
    content.write_bytes(bytes(50_000))
    with FaultyProxy(s3, 0).serving() as proxy:
        use_s3(monkeypatch, proxy.port)
        for number in range(1, ROUNDS + 1):
            store = open_store("s3://bucket/run")  # with connections of its own
            name = f"holder-{number}"
            lease = repeat(Lease.acquire, store, name, [f"holder-{number - 1}"], 60.0)
            assert sorted(lease.manifest.checkpoints) == list(range(1, number))
            repeat(store.upload, content, f"data-{number}")
            repeat(lease.change, commit(number, f"data-{number}"))
        assert sum(proxy.faults.values()) > 2, proxy.faults
        proxy.is_faulty = False
        plain = open_store("s3://bucket/run")
        manifest, _ = read_manifest(plain)
        assert manifest.checkpoints == {number: f"data-{number}" for number in range(1, ROUNDS + 1)}
        for name in manifest.checkpoints.values():
            assert plain.read(name)[0] == content.read_bytes()
        lease.change(lambda manifest: manifest)
        Lease.acquire(plain, "other", [f"holder-{ROUNDS}"], 60.0)
        with pytest.raises(LeaseLostError):
            lease.renew()


def test_retry_repeats_what_is_temporary_and_nothing_else():
    busy = StoreError("busy")
    pauses = []
    assert retry(Mock(side_effect=[busy, busy, "done"]), 60.0, pauses.append) == "done"
    assert pauses == [0.5, 1.0]
    refused = StoreError("refused", is_temporary=False)
    with pytest.raises(StoreError, match="refused"):
        retry(Mock(side_effect=[refused, "never"]), 60.0, pauses.append)
    with pytest.raises(StoreError, match="busy"):
        retry(Mock(side_effect=busy), 0.4, pauses.append)
