"""Addresses of stores."""

from importlib.metadata import EntryPoint

from tests.support.object_stores import MemoryStore
from trainer.config import addresses
from trainer.store.object_store import open_store


def test_store_of_another_project_is_found_by_its_entry_point(monkeypatch):
    point = EntryPoint("mem", "tests.support.object_stores:MemoryStore", "steadfast.stores")
    monkeypatch.setattr(addresses, "entry_points", lambda group: [point])
    monkeypatch.setattr(addresses, "store_classes", addresses.store_classes.__wrapped__)
    monkeypatch.setattr(MemoryStore, "__init__", lambda self, bucket, path: None)
    assert addresses.problem("runs_dir", "mem://bucket/runs") is None
    assert isinstance(open_store("mem://bucket/runs"), MemoryStore)
