"""Batches of workers elsewhere are those of the source, made from what was sent; calls into Python are made here."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.arrays import ArraySplit
from trainer.errors import ConfigError
from trainer.input import SampleOrder, Source
from trainer.shipping import Prefetched, Shipped

N = 23
FEATURES = np.arange(N * 2, dtype=np.uint8).reshape(N, 2)


class Reported:
    """Examples of which number 13 is broken: it counts for nothing, and is reported."""

    resident, num_examples = False, N

    def __init__(self, error=None):
        self.reported, self.error = [], error

    def fetch(self, indices):
        good = tf.not_equal(indices, 13)
        report = tf.cond(tf.reduce_all(good), tf.no_op, lambda: tf.numpy_function(self.report, [indices, good], []))
        # A function within a function, as tf.data makes them.
        labels = tf.data.Dataset.from_tensor_slices(indices).map(lambda x: x % 10).batch(4).get_single_element()
        with tf.control_dependencies([report]):
            return {"label": tf.ensure_shape(labels, [4]), "weight": tf.cast(good, tf.float32)}

    def report(self, indices, good):
        self.reported += indices[~good].tolist()
        if self.error:
            raise self.error


def sent(tensors):
    """Sends to this process."""
    return iter(tf.data.Dataset.from_tensors(tuple(tensors)).repeat())


def batches(feed, steps, strategy=None, left_out=()):
    """Gives the batches and draws of the steps as a chunk on a worker gets them, replicas one after the other."""
    strategy = strategy or tf.distribute.get_strategy()

    @tf.function(autograph=False)
    def chunk(iterator, start, count):
        opened = feed.open(next(iterator), start, count)

        def one_step(index, found):
            def of_replica(taken, index):
                return feed.give(taken, index, tf.distribute.get_replica_context().replica_id_in_sync_group)

            given = strategy.run(of_replica, args=(feed.take(opened), index))
            local = tf.nest.map_structure(lambda *xs: tf.concat(xs, 0), *strategy.experimental_local_results(given)) if many else given
            return index + 1, tf.nest.map_structure(lambda array, x: array.write(tf.cast(index - start, tf.int32), x), found, local)

        many = strategy.num_replicas_in_sync > 1
        arrays = tf.nest.map_structure(
            lambda x: tf.TensorArray(x.dtype, steps, element_shape=[x.shape[0] * strategy.num_replicas_in_sync, *x.shape[1:]]),
            feed._assemble.structured_outputs,
        )
        found = tf.while_loop(lambda index, _: index < start + count, one_step, (start, arrays))[1]
        return tf.nest.map_structure(lambda array: array.stack(), found)

    return tf.nest.map_structure(
        lambda x: x.numpy(), chunk(feed.start(0, left_out), tf.constant(3, tf.int64), tf.constant(steps, tf.int64))
    )


@pytest.mark.parametrize("kind", [Shipped, Prefetched])
@pytest.mark.parametrize("order", [SampleOrder(N, 7), None], ids=["training", "evaluation"])
def test_a_worker_gets_the_batches_of_the_source(kind, order):
    source = Source(ArraySplit(FEATURES, np.arange(N) % 10), 6, 1, order, 3 if order else 0)
    left_out = [1, 5] if order else []
    found = batches(kind(source, sent), 4, left_out=left_out)
    for number, block in enumerate([4, 6, 7, 8] if order else [3, 4, 5, 6]):
        expected = source.assemble(tf.constant(block, tf.int64), tf.constant(0))
        tf.nest.map_structure(lambda x, y, n=number: np.testing.assert_array_equal(x[n], y), found, expected)


@pytest.mark.parametrize("kind", [Shipped, Prefetched])
def test_each_replica_of_a_worker_gets_its_part(kind):
    source = Source(ArraySplit(FEATURES, np.arange(N) % 10), 3, 2, SampleOrder(N, 7), 1)
    found = batches(kind(source, sent), 2, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))[0]["id"]
    expected = [[source.assemble(tf.constant(step, tf.int64), tf.constant(r))[0]["id"] for r in (0, 1)] for step in (3, 4)]
    np.testing.assert_array_equal(found, np.reshape(expected, [2, 6]))


def test_what_is_sent_is_sent_once():
    made = []
    feed = Shipped(Source(ArraySplit(FEATURES, np.arange(N) % 10), 6, 1), lambda tensors: made.append(tensors) or sent(tensors))
    assert feed.start(0) is feed.start(100)
    ((features, labels, _),) = made
    np.testing.assert_array_equal(features, FEATURES)
    np.testing.assert_array_equal(labels, np.arange(N) % 10)


def test_a_report_is_made_here_and_only_of_steps_with_an_example_that_did_not_count():
    split = Reported()
    source = Source(split, 4, 1)
    feed = Prefetched(source, sent)
    weights = batches(feed, 3)[0]["weight"].sum(axis=1)  # of steps 3 to 5, the last of which is padded
    assert weights.tolist() == [3.0, 4.0, 3.0]
    feed.judge(4, 1, weights[1])
    feed.judge(5, 1, weights[2])
    assert split.reported == []
    feed.judge(3, 3, weights.sum())
    assert split.reported == [13]


def test_a_report_that_is_an_error_says_so_in_the_form_that_is_told_to_the_user():
    feed = Prefetched(Source(Reported(ValueError("cannot read 13")), 4, 1), sent)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ValueError: cannot read 13"):
        feed.judge(2, 2, 7.0)


def test_examples_that_python_makes_are_refused():
    class Made:
        resident, num_examples = False, N

        def fetch(self, indices):
            return {"label": tf.ensure_shape(tf.numpy_function(lambda x: x % 10, [indices], tf.int64), [4])}

    with pytest.raises(ConfigError, match=r"come from a Python function .* choose another strategy"):
        Shipped(Source(Made(), 4, 1), sent)
