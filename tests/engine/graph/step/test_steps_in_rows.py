"""Steps with a table of which they look up few rows: the bits of the dense computation."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import Layout
from trainer.engine.graph.checks.traced_operations import all_graphs
from trainer.engine.graph.step.row_gradients import LEAST_SIZE, for_optimizer
from trainer.engine.graph.step.update_check import Clip
from trainer.errors import ConfigError
from trainer.optimizers.adagrad import adagrad
from trainer.optimizers.adam import adam
from trainer.optimizers.sgd import sgd

COLUMNS = 4
ROWS = LEAST_SIZE // COLUMNS
SIZE = 16
STEPS = 3
RANDOM = np.random.RandomState(0)
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

    def __init__(self, layout: Layout, make_optimizer, **options) -> None:
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
    dense = Trained(layout, OPTIMIZERS[name], rows=False)
    assert_same_bits(in_rows.values, dense.values)
    assert "UnsortedSegmentSum" in dense.table_sized  # the table is large enough


@pytest.mark.parametrize("clip", [Clip(norm=0.1), Clip(value=0.01)], ids=["norm", "value"])
def test_clipped_steps_have_the_same_bits_on_every_layout(clip):
    one = Trained(Layout(1, 1, 4), OPTIMIZERS["sgd"], clip=clip)
    two = Trained(Layout(2, 1, 4), OPTIMIZERS["sgd"], clip=clip)
    assert_same_bits(one.values, two.values)
    dense = Trained(Layout(1, 1, 4), OPTIMIZERS["sgd"], clip=clip, rows=False)
    plain = Trained(Layout(1, 1, 4), OPTIMIZERS["sgd"], rows=False)
    assert np.abs(plain.values[0] - dense.values[0]).max() > 1e-3
    for value, other in zip(one.values, dense.values, strict=True):
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
