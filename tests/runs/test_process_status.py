"""Records of what processes do: who lives is seen without clocks; stale records are left out."""

import os

import pytest

from trainer.runs import process_status
from trainer.runs.process_status import HostStatus, ProcessStatus


def record(number=0, code=None, cluster=("worker-0", "worker-1"), name="worker-0", pid=7):
    process = ProcessStatus(name, "train", 12, 0.5, "done" if code == 0 else "")
    return HostStatus(f"host-of-{name}", pid, number, list(cluster), [process], code)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_records_of_an_earlier_cluster_are_left_out(run_dir):
    earlier = [f"worker-{index}" for index in range(4)]
    for at, name in enumerate(earlier):
        process_status.write(run_dir, name, record(code=143, cluster=earlier, name=name))
        os.utime(run_dir / "logs" / f"status-{name}.json", (at, at))
    for at, name in enumerate(earlier[:2]):
        process_status.write(run_dir, name, record(cluster=earlier[:2], name=name))
        os.utime(run_dir / "logs" / f"status-{name}.json", (10 + at, 10 + at))
    records = process_status.read(run_dir)
    assert len(records) == 4
    assert set(process_status.without_earlier(records, set())) == {"worker-0", "worker-1"}
    # Of those that live, the newest file need not be the one that counts.
    assert set(process_status.without_earlier(records, {"worker-3"})) == set(earlier)
    assert process_status.without_earlier({}, set()) == {}
