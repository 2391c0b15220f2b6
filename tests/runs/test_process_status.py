"""Records of what processes do: those of an earlier cluster are left out."""

import os

import pytest

from trainer.runs import process_status
from trainer.runs.process_status import HostStatus, ProcessStatus


def record(cluster, name, code=None):
    process = ProcessStatus(name, "train", 12, 0.5, "")
    return HostStatus(f"host-of-{name}", cluster, [process], code)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_records_of_an_earlier_cluster_are_left_out(run_dir):
    earlier = [f"worker-{index}" for index in range(4)]
    for at, name in enumerate(earlier):
        process_status.write(run_dir, name, record(earlier, name, code=143))
        os.utime(run_dir / "logs" / f"status-{name}.json", (at, at))
    for at, name in enumerate(earlier[:2]):
        process_status.write(run_dir, name, record(earlier[:2], name))
        os.utime(run_dir / "logs" / f"status-{name}.json", (10 + at, 10 + at))
    records = process_status.read(run_dir)
    assert len(records) == 4
    assert set(process_status.without_earlier(records)) == {"worker-0", "worker-1"}
    assert process_status.without_earlier({}) == {}
