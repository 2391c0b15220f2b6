"""The lock of a sweep's folder."""

from contextlib import closing

import pytest

from trainer.sweep.points.sweep_lock import SweepLock


@pytest.fixture
def lock(tmp_path):
    return SweepLock(tmp_path / "sweep" / ".lock")


def test_lock_is_held_until_its_file_is_closed(lock):
    assert not lock.is_held()
    file = lock.acquire()
    assert lock.is_held()
    file.close()
    assert not lock.is_held()


def test_lock_cannot_be_acquired_twice(lock):
    with closing(lock.acquire()):
        assert lock.acquire() is None
        assert lock.acquire(wait_secs=0.01) is None
    lock.acquire().close()


def test_lock_counts_as_held_on_another_host(lock):
    assert SweepLock(lock.path, "elsewhere").is_held()
