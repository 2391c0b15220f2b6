"""A writer that blocks holds no step up, and one that fails is heard of."""

import threading

import pytest

from trainer.errors import StorageError
from trainer.writers import background
from trainer.writers.background import Background
from trainer.writers.base import Writer


class Recorder(Writer):
    """Remembers the steps; waits for `free` before each, and fails at some."""

    def __init__(self, free=None, fails_at=(), error=None):
        self.free, self.fails_at, self.error = free, fails_at, error or StorageError("the disk is full")
        self.steps, self.closed = [], False

    def scalars(self, split, step, values):
        if self.free is not None:
            assert self.free.wait(30)
        if step in self.fails_at:
            raise self.error
        self.steps.append(step)

    def close(self):
        self.closed = True


def test_a_writer_that_blocks_holds_up_a_flush_alone():
    free = threading.Event()
    recorder = Recorder(free)
    writer = Background(lambda: recorder)
    for step in range(1, 10):
        writer.scalars("train", step, {})
    assert recorder.steps == []  # and this thread has come here
    flushed = threading.Thread(target=writer.flush)
    flushed.start()
    flushed.join(0.05)
    assert flushed.is_alive()
    free.set()
    flushed.join(30)
    assert recorder.steps == list(range(1, 10))
    writer.close()
    assert recorder.closed
    writer.close()  # as a training does that goes back, and then ends


@pytest.mark.parametrize("call", ["flush", "close"])
def test_what_fails_in_the_thread_is_raised_here(call):
    recorder = Recorder(free := threading.Event(), fails_at=[2])
    writer = Background(lambda: recorder)
    for step in range(1, 4):
        writer.scalars("train", step, {})
    free.set()
    with pytest.raises(StorageError, match="the disk is full"):
        getattr(writer, call)()
    assert recorder.steps == [1]
    assert recorder.closed


def test_an_opening_that_fails_is_raised_here():
    def fails():
        raise StorageError("no such folder")

    with pytest.raises(StorageError, match="no such folder"):
        Background(fails).flush()


def test_the_run_goes_on_without_a_tracker_that_fails_and_that_is_told_once():
    told = []
    recorder = Recorder(fails_at=[2], error=ConnectionError("no route to the server\nand much more"))
    writer = Background(lambda: recorder, told.append)
    for step in range(1, 5):
        writer.scalars("train", step, {})
        writer.flush()
    writer.close()
    writer.scalars("train", 5, {})
    writer.close()
    assert recorder.steps == [1]
    assert told == ["no route to the server"]


def test_a_tracker_that_hangs_holds_nothing_up_and_is_told_of_once(monkeypatch):
    monkeypatch.setattr(background, "_ROOM", 3)
    told, free = [], threading.Event()
    recorder = Recorder(free)
    writer = Background(lambda: recorder, told.append)
    for step in range(1, 50):
        writer.scalars("train", step, {})
        writer.flush()
    writer.close()
    assert told == ["it does not keep up"]
    free.set()


def test_a_tracker_that_hangs_at_the_end_is_not_waited_for_for_ever():
    told, free = [], threading.Event()
    writer = Background(lambda: Recorder(free), told.append, patience_secs=0.05)
    writer.scalars("train", 1, {})
    writer.close()
    assert told == ["no answer for 0.05 s"]
    free.set()
