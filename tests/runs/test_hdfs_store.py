"""HDFS: versions by rename, with every interleaving that could break them, and its failures."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import requests

from tests.runs.test_object_store import check_conditions, check_objects
from tests.support.hdfs_server import CUT, HALF, LOST, hdfs_server
from trainer.config import addresses
from trainer.runs.lease import Lease, LeaseHeldError, LeaseLostError, read_manifest
from trainer.runs.object_store import ConflictError, MissingObjectError, StoreError, retry
from trainer.runs.stores import open_store

WRITERS = 6
WRITES = 5
REQUESTS = 8
"""At most, of one replacement or reading."""


@pytest.fixture
def hdfs(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "anna")
    with hdfs_server() as server:
        yield server


@pytest.fixture
def store(hdfs):
    return open_store(f"{hdfs.address}/runs/one")


def faults(server, operation, *wanted):
    """Let the next requests of an operation fail so."""
    left = list(wanted)
    server.before = lambda name, path: left.pop(0) if left and name == operation else None


def at_request(server, count, act):
    """Act before a request, the first being number 0; return what tells whether it came."""
    seen = [0]

    def before(operation, path):
        seen[0] += 1
        if seen[0] == count + 1:
            server.before = lambda operation, path: None
            act()

    server.before = before
    return lambda: seen[0] > count


def add_dots(store, times):
    """Replace the object `a` some times, each time as whoever has just read it."""
    for _ in range(times):
        content, version = store.read("a")
        store.replace("a", content + b".", version)


def test_hdfs_keeps_the_contract(tmp_path, hdfs, store):
    check_conditions(store)
    check_objects(store, tmp_path)
    assert hdfs.users == {"anna"}
    assert sorted(hdfs.files) == ["/runs/one/a.version-2", "/runs/one/folder/d.version-1"]
    store.delete(["folder/d"])
    assert store.folders() == []  # an empty folder goes, too
    assert open_store(f"{hdfs.address}/runs").names("") == ["one/a"]
    open_store(hdfs.address).replace("b", b"", None)
    assert "/b.version-1" in hdfs.files


def test_upload_replaces_a_whole_object_of_any_size(tmp_path, hdfs, store):
    file = tmp_path / "file"
    for content in (b"", bytes(3 << 20), b"ab"):
        file.write_bytes(content)
        store.upload(file, "a+b %41")
        store.download("a+b %41", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == content
    assert list(hdfs.files) == ["/runs/one/a+b %41.version-3"]


def test_file_that_grows_is_uploaded_as_it_was(tmp_path, hdfs, store):
    file = tmp_path / "file"
    file.write_bytes(b"abc")

    def grow(operation, path):
        if operation == "CREATE":
            with file.open("ab") as more:
                more.write(b"def")

    hdfs.before = grow
    store.upload(file, "log")
    assert store.read("log")[0] == b"abc"


@pytest.mark.parametrize("times", [1, 3])
def test_no_replacement_is_lost_when_others_come_between_the_requests_of_one(hdfs, store, times):
    other = open_store(f"{hdfs.address}/runs/one")
    outcomes = []
    is_over = False
    while not is_over:
        hdfs.files.clear()
        first = store.replace("a", b"0", None)
        came = at_request(hdfs, len(outcomes), lambda: add_dots(other, times))
        has_won = False
        with suppress(ConflictError):
            store.replace("a", b"1", first)
            has_won = True
        is_over = not came()
        hdfs.before = lambda operation, path: None
        content, version = store.read("a")
        # If the others came after its rename, it may have won without knowing.
        assert content in ({b"1"} if is_over else {start + b"." * times for start in (b"0", b"1")})
        assert content.startswith(b"1") or not has_won
        with pytest.raises(ConflictError):
            store.replace("a", b"2", first)
        # The next one also removes what a late rename has made.
        store.replace("a", b"3", version)
        assert list(hdfs.files) == [f"/runs/one/a.version-{int(version) + 1}"]
        outcomes.append((has_won, content[:1]))
    # CREATE, WRITE, LISTSTATUS, RENAME, LISTSTATUS, DELETE
    lost, unknown, won = (False, b"0"), (False, b"1"), (True, b"1")
    assert outcomes == [lost, lost, lost, lost, unknown, won, won]


def test_late_rename_to_a_number_that_was_removed_is_never_read(hdfs, store):
    other = open_store(f"{hdfs.address}/runs/one")

    def come_late():
        add_dots(other, 3)
        hdfs.write("/runs/one/a.version-1", b"late")

    contents = []
    is_over = False
    while not is_over:
        hdfs.files.clear()
        store.replace("a", b"0", None)
        came = at_request(hdfs, len(contents), come_late)
        contents.append(store.read("a"))
        is_over = not came()
    # LISTSTATUS, OPEN, READ, LISTSTATUS: what is read between two equal lists.
    assert contents == [*[(b"0...", "4")] * 4, (b"0", "1")]


def test_reader_gives_up_on_what_is_replaced_all_the_time(hdfs, store):
    store.replace("a", b"0", None)
    other = open_store(f"{hdfs.address}/runs/one")

    def before(operation, path):
        if operation == "OPEN":
            hdfs.before = lambda operation, path: None
            add_dots(other, 1)
            hdfs.before = before

    hdfs.before = before
    with pytest.raises(StoreError, match="a was replaced while it was read") as error:
        store.read("a")
    assert error.value.is_temporary


def test_writers_at_the_same_time_lose_nothing(hdfs):
    def write(writer):
        own = open_store(f"{hdfs.address}/run")
        for number in range(WRITES):
            token, has_it = f"{writer}-{number}", False
            while not has_it:
                try:
                    content, version = own.read("a")
                except MissingObjectError:
                    content, version = b"[]", None
                except StoreError:  # the others were too fast
                    continue
                tokens = json.loads(content)
                has_it = token in tokens
                if not has_it:
                    with suppress(ConflictError):  # which may have come in all the same
                        own.replace("a", json.dumps([*tokens, token]).encode(), version)
                        has_it = True

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))
    content, version = open_store(f"{hdfs.address}/run").read("a")
    expected = {f"{writer}-{number}" for writer in range(WRITERS) for number in range(WRITES)}
    assert sorted(json.loads(content)) == sorted(expected)
    assert version == str(WRITERS * WRITES)


def commit(step):
    return lambda manifest: replace(manifest, checkpoints={**manifest.checkpoints, step: "a"})


@pytest.mark.parametrize("operation", ["CREATE", "WRITE", "LISTSTATUS", "RENAME", "DELETE"])
def test_lease_survives_a_lost_answer_to_any_request(hdfs, store, operation):
    faults(hdfs, operation, LOST)
    lease = retry(lambda: Lease.acquire(store, "first", [], 60.0), 60.0, lambda secs: None)
    faults(hdfs, operation, LOST)
    retry(lambda: lease.change(commit(1)), 60.0, lambda secs: None)
    with pytest.raises(LeaseHeldError, match="first"):
        Lease.acquire(store, "second", [], 60.0, sleep=lambda secs: lease.renew())
    assert read_manifest(store)[0].checkpoints == {1: "a"}


def test_of_two_holders_only_the_later_commits_in_every_interleaving(hdfs, store):
    own = open_store(f"{hdfs.address}/runs/one")
    for count in range(2 * REQUESTS):
        hdfs.files.clear()
        lease = Lease.acquire(store, "first", [], 60.0)

        def take_over():
            Lease.acquire(own, "second", ["first"], 60.0).change(commit(100))

        came = at_request(hdfs, count, take_over)
        steps = []

        def commit_all(lease=lease, came=came, steps=steps):
            for step in range(1, 10):
                was_taken = came()
                lease.change(commit(step))
                assert not was_taken, "the first has committed after the second took over"
                steps.append(step)

        with pytest.raises(LeaseLostError, match="second"):
            commit_all()
        kept = read_manifest(store)[0].checkpoints
        # The last may have come in before the second, without an answer.
        assert sorted(kept) in ([*steps, 100], [*steps, len(steps) + 1, 100]), count


def test_writer_that_ends_at_any_request_loses_no_commit(hdfs, store):
    for count in range(2 * REQUESTS):
        hdfs.files.clear()
        seen = [0]

        def before(operation, path, seen=seen, count=count):
            seen[0] += 1
            return (403, "AccessControlException") if seen[0] > count else None

        hdfs.before = before
        committed = []
        with suppress(StoreError):
            lease = Lease.acquire(store, "first", [], 60.0)
            for step in range(1, 10):
                lease.change(commit(step))
                committed.append(step)
        hdfs.before = lambda operation, path: None
        now = Lease.acquire(store, "second", ["first"], 60.0).manifest.checkpoints
        assert list(now) in (committed, [*committed, len(committed) + 1])


def test_upload_that_fails_is_not_seen_and_leaves_the_object_as_it_was(tmp_path, hdfs, store):
    file = tmp_path / "file"
    file.write_bytes(b"old")
    store.upload(file, "a")
    file.write_bytes(bytes(100_000))
    for fault in (CUT, LOST, HALF):
        faults(hdfs, "WRITE", fault)
        with pytest.raises(StoreError) as error:
            store.upload(file, "a")
        assert error.value.is_temporary
        assert store.read("a") == (b"old", "1")
        assert list(hdfs.files) == ["/runs/one/a.version-1"]  # the rest was removed


def test_killed_upload_leaves_a_file_that_goes_with_its_object(tmp_path, hdfs, store):
    hdfs.write(f"/runs/one/folder/a.{'0' * 32}.tmp", b"half")
    with pytest.raises(MissingObjectError):
        store.read("folder/a")
    assert store.names("folder/") == ["folder/a"]
    store.delete(["folder/a"])
    assert hdfs.files == {}


@pytest.mark.parametrize(
    ("fault", "is_temporary"),
    [
        ((403, "AccessControlException"), False),
        ((401, "SecurityException"), False),
        ((400, "IllegalArgumentException"), False),
        ((403, "StandbyException"), True),
        ((403, "SafeModeException"), True),
        ((403, "RetriableException"), True),
        ((503, "RuntimeException"), True),
        (LOST, True),
    ],
)
def test_failures_are_named_in_one_line_as_temporary_or_not(hdfs, store, fault, is_temporary):
    for operation in ("CREATE", "RENAME", "LISTSTATUS"):
        faults(hdfs, operation, fault)
        with pytest.raises(StoreError) as error:
            store.replace("a", b"", None)
        assert error.value.is_temporary is is_temporary
        assert not isinstance(error.value, ConflictError)
        assert "\n" not in str(error.value)
        if fault != LOST:
            assert f"{fault[1]}: no" in str(error.value)
        hdfs.files.clear()


def test_what_is_no_name_node_is_told(monkeypatch, hdfs):
    answer = requests.Response()
    answer.status_code = 200
    monkeypatch.setattr(requests, "request", lambda *args, **options: answer)
    for content in (b"<html>", b"{}"):
        answer._content = content
        with pytest.raises(StoreError, match="not an answer of WebHDFS") as error:
            open_store("hdfs://proxy/runs").read("a")
        assert not error.value.is_temporary
    monkeypatch.undo()
    with pytest.raises(StoreError) as refused:
        open_store("hdfs://127.0.0.1:1/runs").read("a")
    assert refused.value.is_temporary
    with pytest.raises(StoreError) as wrong:
        open_store("hdfs://name node/runs").read("a")
    assert not wrong.value.is_temporary


def test_port_and_user_have_the_defaults_of_hadoop(monkeypatch):
    sent = []

    def request(method, url, **options):
        sent.append((url, options["params"]["user.name"]))
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "request", request)
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.setenv("LOGNAME", "bob")
    with pytest.raises(StoreError):
        open_store("hdfs://namenode/runs").read("a")
    monkeypatch.setenv("HADOOP_USER_NAME", "anna")
    with pytest.raises(StoreError):
        open_store("hdfs://[::1]:98/runs").read("a")
    assert sent == [
        ("http://namenode:9870/webhdfs/v1/runs/", "bob"),
        ("http://[::1]:98/webhdfs/v1/runs/", "anna"),
    ]


def test_address_without_a_name_node_is_refused():
    assert addresses.problem("runs_dir", "hdfs://namenode/runs") is None
    problem = addresses.problem("runs_dir", "hdfs:///runs")
    assert problem == (
        "runs_dir (hdfs:///runs) must name a name node and a folder; write hdfs://namenode/runs"
    )
    assert "did you mean 'hdfs'?" in addresses.problem("runs_dir", "hdf://namenode/runs")
