"""A run in a store as it is read by others: in use, silent, replaced meanwhile, missing."""

import hashlib
import json
from dataclasses import replace
from itertools import chain, repeat
from unittest.mock import DEFAULT, Mock

import pytest

from tests.support.object_stores import MemoryStore, upload_run, write_checkpoint
from trainer.cli.compose import compose
from trainer.errors import ConfigError
from trainer.files import is_locked
from trainer.runs.checkpoint_marker import verify
from trainer.runs.directory import lock_file, open_run
from trainer.runs.status import State, run_status
from trainer.store import remote_files, remote_view
from trainer.store.lease import Manifest
from trainer.store.object_store import MissingObjectError, StoreError

ADDRESS = "s3://bucket/runs/a-1"
HOLDER = "node-1:7:a"


@pytest.fixture
def stores(monkeypatch):
    """The stores by address."""
    stores = {"s3://bucket/runs": MemoryStore(), ADDRESS: MemoryStore()}
    monkeypatch.setattr(remote_view, "open_store", lambda place: stores[place])
    return stores


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = open_run(compose(["store.lease_secs=1"]), [], None)
    run.release()
    (run.path / "logs").mkdir()
    (run.path / "logs" / "worker-0.log").write_text("long")
    (run.path / "events").mkdir()
    (run.path / "events" / "x.json").write_text("{}")
    write_checkpoint(run.path, 3)
    write_checkpoint(run.path, 5)
    return run.path


def test_run_is_running_only_if_its_lease_is_renewed(stores, run_dir, monkeypatch):
    lease = upload_run(stores[ADDRESS], run_dir, HOLDER)
    monkeypatch.setattr("time.sleep", lambda secs: lease.renew())
    with remote_view.view("report", ADDRESS) as path:
        found = run_status(path)
        assert (found.state, found.step) == (State.RUNNING, 5)
        files = {file.relative_to(path).as_posix() for file in path.rglob("*.*")}
        assert files == {".lock", "config.yaml", "run.json", "checkpoints/ckpt-5.json"}
    assert not path.exists()
    lease.renew()  # it was not disturbed
    monkeypatch.setattr("time.sleep", lambda secs: None)
    for _ in range(2):
        with remote_view.view("report", ADDRESS) as path:
            assert not is_locked(lock_file(path))
            assert run_status(path).state is State.STOPPED
        lease.release()


def test_file_that_is_replaced_while_it_is_read_is_read_again(stores, run_dir, monkeypatch):
    upload_run(stores[ADDRESS], run_dir, HOLDER).release()
    monkeypatch.setattr("time.sleep", lambda secs: None)
    download = stores[ADDRESS].download
    once_missing = chain([MissingObjectError("config.yaml")], repeat(DEFAULT))
    stores[ADDRESS].download = Mock(wraps=download, side_effect=once_missing)
    with remote_view.view("report", ADDRESS) as path:
        assert (path / "config.yaml").is_file()


def refused(address, stores, action, message):
    stores.setdefault(address, MemoryStore())
    with pytest.raises(ConfigError, match=message):
        action("report", address)


def test_missing_run_is_refused_with_what_is_there(stores, run_dir):
    upload_run(stores[ADDRESS], run_dir, HOLDER).release()
    folder = stores["s3://bucket/runs"]
    folder.objects = {f"a-1/{name}": value for name, value in stores[ADDRESS].objects.items()}
    for action in (remote_view.runs_at, lambda *names: remote_view.view(*names).__enter__()):
        refused("s3://bucket/runs/a-2", stores, action, r"^report \(s3://.*/a-2\): no run there")
    refused("s3://bucket/runs", stores, action, "the folders a-1;")
    assert remote_view.runs_at("report", "s3://bucket/runs") == [ADDRESS]
    refused("ftp://a/b", stores, remote_view.runs_at, "no runs are kept in ftp://")
    stores[ADDRESS].read = Mock(side_effect=StoreError("access denied", is_temporary=False))
    refused(ADDRESS, stores, remote_view.runs_at, "access denied")


def test_run_that_has_saved_nothing_is_missing_unless_it_is_in_use(stores, monkeypatch, tmp_path):
    monkeypatch.setattr(remote_view, "_lease_secs", lambda path: 0.1)
    lease = upload_run(stores[ADDRESS], tmp_path / "nothing", HOLDER)
    with pytest.raises(ConfigError, match="its last command has saved nothing"):
        remote_view.view("report", ADDRESS).__enter__()
    monkeypatch.setattr("time.sleep", lambda secs: lease.renew())
    with remote_view.view("report", ADDRESS) as path:
        assert run_status(path).state is State.RUNNING


@pytest.mark.parametrize("name", ["../../x/logs/status-1.json", "/etc/x/logs/status-1.json", ""])
def test_names_of_a_manifest_that_leave_the_run_are_refused(stores, run_dir, monkeypatch, name):
    lease = upload_run(stores[ADDRESS], run_dir, HOLDER)
    lease.change(lambda manifest: replace(manifest, files={**manifest.files, name: 1}))
    monkeypatch.setattr(remote_view, "_RETRY_SECS", 0.0)
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged: .* is not a file name: "):
        next(remote_view.view("report", ADDRESS).gen)
    stores[ADDRESS].objects.pop("manifest.json")
    manifest = Manifest(1, HOLDER, True, 1, {5: name or ".."}, {"config.yaml": 1})
    with pytest.raises(StoreError, match=r"manifest\.json is damaged: .* is not a file name: "):
        Manifest.decode(manifest.encode())


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_names_of_a_marker_that_leave_the_folder_are_refused(tmp_path, name):
    store = MemoryStore()
    marker = json.dumps({"step": 5, "metrics": {}, "files": {name: {"bytes": 1, "sha256": ""}}})
    folder = remote_files.folder_of(5, hashlib.sha256(marker.encode()).hexdigest())
    store.objects[f"checkpoints/{folder}/ckpt-5.json"] = (marker.encode(), "1")
    store.objects[f"checkpoints/{folder}/{name}"] = (b"x", "1")
    target = tmp_path / "run" / "checkpoints"
    problem = remote_files.download_checkpoint(store, folder, target, 5)
    assert "is not a file name" in problem
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    target.joinpath("ckpt-5.json").write_text(marker)
    assert verify(target, 5) == "its marker is damaged"
