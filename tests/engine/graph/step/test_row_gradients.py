"""Gradients in rows: sums of the dense computation, row by row, and steps with its bits."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import Layout
from trainer.engine.graph.checks.graph_check import all_graphs
from trainer.engine.graph.step import row_gradients
from trainer.engine.graph.step.accumulation import sum_over_shards
from trainer.engine.graph.step.row_gradients import LEAST_SIZE, SHARE, for_optimizer
from trainer.engine.graph.step.update_check import Clip
from trainer.errors import ConfigError
from trainer.optimizers.adagrad import adagrad
from trainer.optimizers.adam import adam
from trainer.optimizers.sgd import sgd

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


def test_rows_of_an_optimizer_that_sums_are_passed_once():
    gradients = [rows(4, 2), tf.constant([3.0])]
    shares = [
        row_gradients.own_shares(gradients, tf.constant(number == 0), 3, in_tree=True)
        for number in range(3)
    ]
    assert [share[0].indices.numpy().tolist() for share in shares] == [[4, 2], [], []]
    assert sum(float(share[1][0]) for share in shares) == 3.0


COLUMNS = 4
ROWS = LEAST_SIZE // COLUMNS
SIZE = 16
STEPS = 3
Y = RANDOM.standard_normal([STEPS, SIZE]).astype(np.float32)
IDS = RANDOM.randint(0, 20, [STEPS, SIZE, 3])  # that come again, within an example and beyond
IDS[:, 0] = RANDOM.randint(0, ROWS, [STEPS, 3])
IDS[:, -1] = ROWS - 1  # on one replica alone
OPTIMIZERS = {
    "sgd": lambda: sgd(0.3, momentum=0.0),
    "adagrad": lambda: adagrad(0.3),
    "momentum": lambda: sgd(0.1),
    "adam": lambda: adam(0.01),
}


class Trained:
    """A model after some steps.

    Attributes:
        values: the variables of the model and of its optimizer.
        table_sized: types of the operations of a step that have a tensor as large as the table.
    """

    def __init__(self, layout, make_optimizer, **options):
        tf.keras.utils.set_random_seed(0)
        with layout.strategy().scope():
            layers = [tf.keras.layers.Embedding(ROWS, COLUMNS), tf.keras.layers.Flatten()]
            inputs = tf.keras.Input((3,), dtype=tf.int64)
            self.model = tf.keras.Sequential([inputs, *layers, tf.keras.layers.Dense(1)])
            self.optimizer = make_optimizer()
            self.optimizer._create_all_weights(self.model.trainable_variables)
            step = layout.step(self._train, **options)
            for ids, y in zip(IDS, Y, strict=True):
                step({"ids": tf.constant(ids), "y": tf.constant(y), "weight": tf.ones([SIZE])})
            (traced,) = step._list_all_concrete_functions()
        variables = [*self.model.variables, *self.optimizer.variables()]
        self.values = [variable.numpy() for variable in variables]
        self.table_sized = {
            operation.type
            for graph in all_graphs(traced.graph)
            for operation in graph.get_operations()
            for x in operation.outputs
            if x.dtype == tf.float32 and x.shape.rank and x.shape.num_elements() == ROWS * COLUMNS
        }

    def _train(self, step, batch):
        step.minimize(self._loss, batch, self.model, self.optimizer)

    def _loss(self, part):
        return tf.square(self.model(part["ids"])[:, 0] - part["y"]), {}


def assert_same_bits(values, others):
    for value, other in zip(values, others, strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(1, 2, 2),
        *(pytest.param(x, marks=pytest.mark.slow) for x in (Layout(2, 2), Layout(2, 2, 4))),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_in_rows_have_the_bits_of_dense_ones(name, layout):
    in_rows = Trained(layout, OPTIMIZERS[name])
    whole = Trained(layout, OPTIMIZERS[name], rows=False)
    assert_same_bits(in_rows.values, whole.values)
    assert "UnsortedSegmentSum" in whole.table_sized  # the table is large enough


@pytest.mark.parametrize("clip", [Clip(norm=0.1), Clip(value=0.01)], ids=["norm", "value"])
def test_clipped_steps_have_the_same_bits_on_every_layout(clip):
    one = Trained(Layout(1, 1, 4), OPTIMIZERS["sgd"], clip=clip)
    two = Trained(Layout(2, 1, 4), OPTIMIZERS["sgd"], clip=clip)
    assert_same_bits(one.values, two.values)
    whole = Trained(Layout(1, 1, 4), OPTIMIZERS["sgd"], clip=clip, rows=False)
    plain = Trained(Layout(1, 1, 4), OPTIMIZERS["sgd"], rows=False)
    assert np.abs(plain.values[0] - whole.values[0]).max() > 1e-3
    for value, other in zip(one.values, whole.values, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_step_has_no_tensor_of_the_size_of_the_table(name):
    assert Trained(Layout(1, 2, 2), OPTIMIZERS[name]).table_sized <= {"ReadVariableOp"}


def test_optimizer_without_a_table_cannot_be_lazy():
    optimizer = adam(0.01)
    optimizer.lazy = True
    kernel = tf.Variable(tf.ones([2]))
    with pytest.raises(ConfigError, match=r"lazy \(true\) has no effect, for no weight of Adam"):
        for_optimizer([tf.ones([2])], [kernel], optimizer, print)


def test_lazy_adam_moves_the_rows_of_the_batch_alone():
    def lazy_adam():
        optimizer = adam(0.01)
        optimizer.lazy = True
        return optimizer

    one = Trained(Layout(1, 1, 2), lazy_adam)
    assert one.table_sized <= {"ReadVariableOp"}
    assert_same_bits(one.values, Trained(Layout(2, 1, 2), lazy_adam).values)
    mean = one.optimizer.get_slot(one.model.trainable_variables[0], "m").numpy()
    assert set(np.nonzero(mean.any(axis=1))[0]) == set(IDS.flatten())
