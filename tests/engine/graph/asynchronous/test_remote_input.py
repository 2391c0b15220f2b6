"""Feeds for other processes: batches are those of the source; calls into Python stay here."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.splits.arrays import ArraySplit
from trainer.engine.graph.asynchronous.remote_input import RemoteFeed, RemotePipelineFeed
from trainer.engine.graph.input.feed import SampleOrder, Source
from trainer.errors import ConfigError

N = 23
FEATURES = np.arange(N * 2, dtype=np.uint8).reshape(N, 2)
SPLIT = ArraySplit(FEATURES, np.arange(N) % 10)


class Reported:
    """Examples of which number 13 is broken: its weight is 0, and it is reported."""

    in_memory, num_examples = False, N

    def __init__(self):
        self.reported = []

    def fetch(self, indices):
        good = tf.not_equal(indices, 13)

        def report():
            return tf.numpy_function(self.report, [indices, good], [])

        # A function within a function, as tf.data makes them.
        tens = tf.data.Dataset.from_tensor_slices(indices).map(lambda x: x % 10)
        labels = tens.batch(4).get_single_element()
        with tf.control_dependencies([tf.cond(tf.reduce_all(good), tf.no_op, report)]):
            return {"label": tf.ensure_shape(labels, [4]), "weight": tf.cast(good, tf.float32)}

    def report(self, indices, good):
        self.reported += indices[~good].tolist()


def sent(tensors):
    """Return an iterator over tensors, as if they were sent to this process."""
    return iter(tf.data.Dataset.from_tensors(tuple(tensors)).repeat())


def batches(feed, steps, strategy=None, left_out=()):
    """Return batches and draws of steps from 3 on, as a chunk on a worker gets them."""
    strategy = strategy or tf.distribute.get_strategy()

    def of_replica(element, index):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return feed.replica_batch(element, index, replica)

    @tf.function(autograph=False)
    def chunk(iterator, start, count):
        iterator = feed.open_chunk(next(iterator), start, count)
        results = [
            strategy.run(of_replica, args=(feed.next(iterator), start + number))
            for number in range(steps)
        ]
        return tf.nest.map_structure(
            lambda *xs: tf.stack(
                [tf.concat(strategy.experimental_local_results(x), 0) for x in xs]
            ),
            *results,
        )

    start, count = tf.constant(3, tf.int64), tf.constant(steps, tf.int64)
    result = chunk(feed.open(0, left_out), start, count)
    return tf.nest.map_structure(lambda x: x.numpy(), result)


@pytest.mark.parametrize("kind", [RemoteFeed, RemotePipelineFeed])
@pytest.mark.parametrize("order", [SampleOrder(N, 7), None], ids=["training", "evaluation"])
def test_worker_gets_batches_of_source(kind, order):
    source = Source(SPLIT, 6, 1, order, 3 if order else 0)
    left_out = [1, 5] if order else []
    actual = batches(kind(source, sent), 4, left_out=left_out)
    for number, block in enumerate([4, 6, 7, 8] if order else [3, 4, 5, 6]):
        expected = source.assemble(tf.constant(block, tf.int64), tf.constant(0))
        tf.nest.map_structure(
            lambda x, y, n=number: np.testing.assert_array_equal(x[n], y), actual, expected
        )


@pytest.mark.parametrize("kind", [RemoteFeed, RemotePipelineFeed])
def test_each_replica_of_worker_gets_its_part(kind):
    source = Source(SPLIT, 3, 2, SampleOrder(N, 7), 1)
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    actual = batches(kind(source, sent), 2, two)[0]["id"]
    expected = [
        [source.assemble(tf.constant(step, tf.int64), tf.constant(r))[0]["id"] for r in (0, 1)]
        for step in (3, 4)
    ]
    np.testing.assert_array_equal(actual, np.reshape(expected, [2, 6]))


def test_report_is_made_here_for_steps_with_ignored_examples():
    split = Reported()
    feed = RemotePipelineFeed(Source(split, 4, 1), sent)
    weights = batches(feed, 3)[0]["weight"].sum(axis=1)  # of steps 3 to 5, the last one padded
    assert weights.tolist() == [3.0, 4.0, 3.0]
    feed.count_missing(4, 1, weights[1])
    feed.count_missing(5, 1, weights[2])
    assert split.reported == []
    feed.count_missing(3, 3, weights.sum())
    assert split.reported == [13]


def test_examples_from_python_functions_are_refused():
    class Made:
        in_memory, num_examples = False, N

        def fetch(self, indices):
            labels = tf.numpy_function(lambda x: x % 10, [indices], tf.int64)
            return {"label": tf.ensure_shape(labels, [4])}

    with pytest.raises(
        ConfigError, match=r"come from a Python function .* choose another strategy"
    ):
        RemoteFeed(Source(Made(), 4, 1), sent)
