"""Records of what processes do: who lives is seen without clocks; stale records are left out."""

import os

import pytest

from trainer.runs import process_status
from trainer.runs.process_status import PATIENCE_SECS, HostStatus, ProcessStatus


def record(number=0, code=None, cluster=("worker-0", "worker-1"), name="worker-0", pid=7):
    process = ProcessStatus(name, "train", 12, 0.5, "done" if code == 0 else "")
    return HostStatus(f"host-of-{name}", pid, number, list(cluster), [process], code)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


class Time:
    """A clock; something may happen while a reader sleeps."""

    def __init__(self, happens=None):
        self.now = 0.0
        self.happens = happens or {}

    def clock(self):
        return self.now

    def sleep(self, secs):
        self.now += secs
        for at in [at for at in self.happens if at <= self.now]:
            self.happens.pop(at)()


def watch(run_dir, time):
    return process_status.watch(run_dir, time.clock, time.sleep)


def test_command_lives_if_its_record_grows(run_dir):
    process_status.write(run_dir, "worker-0", record(3))
    process_status.write(run_dir, "worker-1", record(9, name="worker-1"))
    time = Time({1.5: lambda: process_status.write(run_dir, "worker-0", record(4))})
    records, living = watch(run_dir, time)
    assert living == {"worker-0"}
    assert records["worker-0"].number == 4
    assert PATIENCE_SECS <= time.now < PATIENCE_SECS + 1  # worker-1 might have been about to write


def test_command_that_ends_while_it_is_watched_does_not_live(run_dir):
    process_status.write(run_dir, "worker-0", record(3))
    time = Time({1: lambda: process_status.write(run_dir, "worker-0", record(4, code=0))})
    records, living = watch(run_dir, time)
    assert (living, records["worker-0"].code) == (set(), 0)
    assert time.now < 2
    time = Time({1.5: lambda: process_status.write(run_dir, "worker-0", record(0, pid=8))})
    process_status.write(run_dir, "worker-0", record(3))
    assert watch(run_dir, time)[1] == {"worker-0"}  # another command: its numbers begin again
    assert time.now < 2


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
