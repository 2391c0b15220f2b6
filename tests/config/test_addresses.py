"""Addresses of stores, and those at which no run can be kept."""

from importlib.metadata import EntryPoint

import pytest

from tests.support.object_stores import MemoryStore
from trainer.config import addresses
from trainer.store.object_store import open_store


@pytest.mark.parametrize("address", ["s3://bucket/runs", "gs://bucket/a/b"])
def test_address_of_a_bucket_is_accepted(address):
    assert addresses.problem("runs_dir", address) is None


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("hdfs://namenode/runs", "there are no runs in hdfs://; use s3:// or gs://, "),
        (
            "s3a://bucket/runs",
            "there are no runs in s3a://; did you mean 's3'?; use s3:// or gs://",
        ),
        ("s3:///runs", "must name a bucket and a folder; write s3://bucket/runs"),
        ("gs://bucket/../runs", "must name a bucket and a folder; write gs://bucket/runs"),
    ],
)
def test_other_addresses_are_refused_in_one_line(address, problem):
    line = addresses.problem("runs_dir", address)
    assert line.startswith(f"runs_dir ({address})")
    assert problem in line
    assert "\n" not in line


def test_store_of_another_project_is_found_by_its_entry_point(monkeypatch):
    point = EntryPoint("mem", "tests.support.object_stores:MemoryStore", "steadfast.stores")
    monkeypatch.setattr(addresses, "entry_points", lambda group: [point])
    monkeypatch.setattr(addresses, "store_classes", addresses.store_classes.__wrapped__)
    monkeypatch.setattr(MemoryStore, "__init__", lambda self, bucket, path: None)
    assert addresses.problem("runs_dir", "mem://bucket/runs") is None
    assert isinstance(open_store("mem://bucket/runs"), MemoryStore)
