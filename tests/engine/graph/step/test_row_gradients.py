"""Gradients in rows: sums of the dense computation, row by row."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.step import row_gradients
from trainer.engine.graph.step.accumulation import sum_over_shards
from trainer.engine.graph.step.row_gradients import LEAST_SIZE, SHARE

SHAPE = tf.TensorShape([LEAST_SIZE, 2])
RANDOM = np.random.RandomState(0)


def rows(*indices):
    """Return random rows of these indices."""
    values = RANDOM.standard_normal([len(indices), 2]).astype(np.float32)
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices, tf.int64))


def dense(gradient):
    return row_gradients.as_dense(gradient, SHAPE).numpy()


def test_rows_of_one_index_are_added_in_their_order():
    raw = rows(*[5, 3, 5, 9, 5, 3] * 20)
    combined = row_gradients.combine(raw)
    assert combined.indices.numpy().tolist() == [5, 3, 9]
    np.testing.assert_array_equal(dense(combined), dense(raw))
    ordered = row_gradients.in_order(combined)
    assert ordered.indices.numpy().tolist() == [3, 5, 9]
    np.testing.assert_array_equal(dense(ordered), dense(raw))


@pytest.mark.parametrize(
    ("lookups", "stays"),
    [(1, True), (LEAST_SIZE // SHARE, True), (LEAST_SIZE // SHARE + 1, False), (0, False)],
)
def test_gradient_stays_in_rows_where_few_are_looked_up(lookups, stays):
    assert row_gradients.stays_in_rows(rows(1), SHAPE, lookups) == stays
    assert not row_gradients.stays_in_rows(tf.zeros([1, 2]), SHAPE, lookups)
    small = tf.TensorShape([LEAST_SIZE // 2 - 1, 2])
    assert not row_gradients.stays_in_rows(rows(1), small, lookups)


@pytest.mark.parametrize(("static_shapes", "count"), [(True, 6), (False, 4)])
def test_replicas_unite_their_rows(static_shapes, count):
    large = 2**24 + 1  # is no float32
    own = [[large, 3, 2**40 - 1], [3, 5, large]]
    gradients = [[rows(*indices), tf.constant([1.0])] for indices in own]
    halves = []

    def unite(number, sum_exactly):
        return row_gradients.unite(
            gradients[number], tf.constant(number), 2, sum_exactly, static_shapes=static_shapes
        )

    for number in range(2):
        unite(number, lambda own: halves.append(own) or own)
    summed = [a + b for a, b in zip(*halves, strict=True)]
    assert all(half.dtype == tf.float32 for half in summed)
    united = [unite(number, lambda own: summed) for number in range(2)]
    tensors = [a + b for a, b in zip(*(tensors for tensors, _ in united), strict=True)]
    assert tensors[0].shape == [count, 2]
    total, other = row_gradients.reunited(tensors, united[0][1])
    assert other.numpy().tolist() == [2.0]
    assert total.indices.numpy().tolist() == [3, 5, large, 2**40 - 1]
    first, second = (x[0].values.numpy() for x in gradients)
    expected = [first[1] + second[0], second[1], first[0] + second[2], first[2]]
    np.testing.assert_array_equal(total.values, expected)


@pytest.mark.parametrize("in_rows", [True, False])
def test_loop_over_shards_learns_which_gradients_are_in_rows(in_rows):
    parts = [rows(number, 3) for number in range(5)]
    indices = tf.stack([part.indices for part in parts])
    values = tf.stack([part.values for part in parts])

    @tf.function(autograph=False)
    def total():
        def compute(number):
            part = tf.IndexedSlices(values[number], indices[number])
            combined = row_gradients.combine(part)
            return [combined if in_rows else row_gradients.as_dense(part, SHAPE)]

        (result,) = sum_over_shards(compute, 5, [tf.TensorSpec([None, 2])])
        assert isinstance(result, tf.IndexedSlices) == in_rows
        return row_gradients.as_dense(result, SHAPE)

    a, b, c, d, e = map(dense, parts)
    np.testing.assert_array_equal(total(), ((a + b) + (c + d)) + e)


def test_rows_of_an_optimizer_that_adds_up_are_given_once():
    gradients = [rows(4, 2), tf.constant([3.0])]
    shares = [
        row_gradients.own_shares(gradients, tf.constant(number == 0), 3, in_tree=True)
        for number in range(3)
    ]
    assert [share[0].indices.numpy().tolist() for share in shares] == [[4, 2], [], []]
    assert sum(float(share[1][0]) for share in shares) == 3.0
