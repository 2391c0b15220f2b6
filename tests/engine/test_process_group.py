"""Leaving a process group; what needs several processes is in tests/end_to_end/."""

import pytest
import tensorflow as tf

from trainer.engine import process_group
from trainer.engine.process_group import ProcessGroup


class Coordination:
    """Stands for TensorFlow's context, of a process in a cluster."""

    def __init__(self, error=None):
        self.events = []
        self.error = error

    def wait_at_barrier(self, barrier_id, timeout_in_ms):
        self.events.append((barrier_id, timeout_in_ms))
        if self.error:
            raise self.error


@pytest.fixture
def group(monkeypatch):
    group = ProcessGroup(tf.distribute.get_strategy(), 0, 2)
    monkeypatch.setattr(group, "barrier", lambda: None)
    return group


@pytest.mark.parametrize("error", [None, tf.errors.UnavailableError(None, None, "gone")])
def test_process_leaves_when_the_others_do_or_are_gone(group, monkeypatch, error):
    coordination = Coordination(error)
    monkeypatch.setattr(process_group.context, "context", lambda: coordination)
    group.leave()
    assert coordination.events == [("leave", 10_000)]


def test_collectives_are_traced_for_few_lengths():
    first = ProcessGroup(tf.distribute.get_strategy(), 0, 2)
    for length in [*range(70), 1000, 1001]:
        text = ("aé" * length)[:length]
        assert first.broadcast_text(0, text) == text
        assert first.all_reduce_sum(*range(length)) == list(range(length))
    assert first._sums.experimental_get_tracing_count() <= 11


def test_process_gathers_its_integers_at_its_place():
    assert ProcessGroup(tf.distribute.get_strategy(), 1, 3).gather(4, -1) == [
        [0, 0],
        [4, -1],
        [0, 0],
    ]
