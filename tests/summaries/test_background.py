"""A blocked writer delays no step, and errors of a writer are reported."""

import ast
import threading

import pytest

from trainer.config.options import signatures
from trainer.errors import StorageError
from trainer.summaries.writers import background
from trainer.summaries.writers.background import Background
from trainer.summaries.writers.writer import Writer


class Recorder(Writer):
    """Records the steps; waits for `free` before each, and fails at some."""

    def __init__(self, free=None, fails_at=(), error=None):
        self.free, self.fails_at = free, fails_at
        self.error = error or StorageError("the disk is full")
        self.steps, self.closed = [], False

    def scalars(self, split, step, values):
        if self.free is not None:
            assert self.free.wait(30)
        if step in self.fails_at:
            raise self.error
        self.steps.append(step)

    def close(self):
        self.closed = True


def test_blocked_writer_delays_a_flush_alone():
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
def test_error_of_the_writer_is_raised_by_the_next_call(call):
    recorder = Recorder(free := threading.Event(), fails_at=[2])
    writer = Background(lambda: recorder)
    for step in range(1, 4):
        writer.scalars("train", step, {})
    free.set()
    with pytest.raises(StorageError, match="the disk is full"):
        getattr(writer, call)()
    assert recorder.steps == [1]
    assert recorder.closed


def test_failed_tracker_is_abandoned_with_one_warning():
    reasons = []
    error = ConnectionError("no route to the server\nand much more")
    recorder = Recorder(fails_at=[2], error=error)
    writer = Background(lambda: recorder, reasons.append)
    for step in range(1, 5):
        writer.scalars("train", step, {})
        writer.flush()
    writer.close()
    writer.scalars("train", 5, {})
    writer.close()
    assert recorder.steps == [1]
    assert reasons == ["no route to the server"]


def test_hanging_tracker_is_abandoned_when_it_closes():
    reasons, free = [], threading.Event()
    writer = Background(lambda: Recorder(free), reasons.append, patience_secs=0.05)
    writer.scalars("train", 1, {})
    writer.close()
    assert reasons == ["no answer for 0.05 s"]
    free.set()


def test_sources_are_parsed_in_the_main_thread_alone(tmp_path, monkeypatch):
    parsed, parse = [], ast.parse

    def record(*args):
        parsed.append(threading.current_thread())
        return parse(*args)

    signatures._parse.cache_clear()
    signatures._read_once.cache_clear()
    monkeypatch.setattr(ast, "parse", record)
    node = {"_target_": "trainer.summaries.writers.jsonl.JsonLines"}
    for writer in background.open_writers({"jsonl": node}, tmp_path, 0, None):
        writer.close()
    assert set(parsed) == {threading.main_thread()}
