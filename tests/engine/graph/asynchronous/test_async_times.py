"""What a chunk measures: bins of staleness, and the sums over a log interval."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.asynchronous.async_times import WIDTH, AsyncInterval, Staleness
from trainer.runs.ledger import STALENESS_EDGES, WorkerRecord, WorkerTime


def chunk(worker, secs, *values):
    """Return what a chunk with updates of these stalenesses writes."""
    stale = Staleness.zero()
    for value in values:
        stale = stale.add(tf.constant(value, tf.int64))
    numbers = stale.pack(tf.constant(worker), tf.constant(secs, tf.float64)).numpy()
    assert numbers.shape == (WIDTH,)
    return len(values), numbers


def test_each_update_is_in_the_bin_of_its_edge():
    values = [0, 1, 2, 3, 4, 5, 1023, 1024, 99999]
    _, numbers = chunk(0, 1.0, *values)
    expected = np.zeros(len(STALENESS_EDGES))
    for value in values:
        expected[np.searchsorted(STALENESS_EDGES, value, side="right") - 1] += 1
    assert numbers[4:].tolist() == expected.tolist()
    assert numbers[2:4].tolist() == [sum(values), 99999]


def test_interval_adds_up_calls_and_leaves_the_rest_of_the_time_as_wait():
    interval = AsyncInterval(2)
    interval.add([chunk(0, 0.5, 0, 1), chunk(1, 2.0, 3)], 2.5)
    interval.add([chunk(0, 0.5, 1)], 0.5)
    assert interval.record().times == {
        "worker-0": WorkerTime(1.0, 2.0, 3),
        "worker-1": WorkerTime(2.0, 1.0, 1),
    }
    assert interval.record().staleness[:4] == [1, 2, 0, 1]
    assert interval.report() == {
        "worker_0_steps_per_sec": 1.0,
        "worker_1_steps_per_sec": pytest.approx(1 / 3),
        "staleness_mean": 5 / 4,
        "staleness_max": 3.0,
    }


def test_interval_without_a_step_says_nothing():
    assert AsyncInterval(2).record() == WorkerRecord()
    assert AsyncInterval(2).report() == {}
