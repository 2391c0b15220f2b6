"""Updates by rows: the numbers of the dense computation for these rows, and others stay."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.optimizers.adagrad import adagrad
from trainer.optimizers.adam import adam
from trainer.optimizers.adamw import adamw
from trainer.optimizers.lion import lion
from trainer.optimizers.nadam import nadam
from trainer.optimizers.rmsprop import rmsprop
from trainer.optimizers.sgd import sgd

ROWS, COLUMNS, STEPS = 50, 7, 4
LAZY = {
    "adagrad": lambda: adagrad(0.1, weight_decay=0.1),
    "adam": lambda: adam(0.01),
    "adamw": lambda: adamw(0.01),
    "lion": lambda: lion(0.01, weight_decay=0.1),
    "momentum": lambda: sgd(0.1, weight_decay=0.1),
    "nadam": lambda: nadam(0.01, weight_decay=0.1),
    "nesterov": lambda: sgd(0.1, nesterov=True),
    "rmsprop": lambda: rmsprop(0.01),
}
EXACT = {"adagrad": lambda: adagrad(0.1), "sgd": lambda: sgd(0.1, momentum=0.0)}


def gradients(size):
    """Return for each step the rows that it touches, and their values."""
    random = np.random.RandomState(0)
    for _ in range(STEPS):
        ids = np.sort(random.choice(ROWS, size, replace=False))
        yield ids, random.standard_normal([size, COLUMNS]).astype(np.float32)


def trained(optimizer, *, size, in_rows):
    """Return the table and its slots after some steps of `size` rows each."""
    table = tf.Variable(np.random.RandomState(1).standard_normal([ROWS, COLUMNS]), dtype=tf.float32)
    for ids, values in gradients(size):
        gradient = tf.IndexedSlices(tf.constant(values), tf.constant(ids))
        if not in_rows:
            gradient = tf.scatter_nd(ids[:, None], values, table.shape)
        optimizer.apply_gradients([(gradient, table)])
    slots = {name: optimizer.get_slot(table, name).numpy() for name in optimizer.get_slot_names()}
    return {"table": table.numpy(), **slots}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_update_of_all_rows_equals_the_dense_one(name):
    assert not LAZY[name]().updates_rows(tf.zeros([ROWS, COLUMNS])), "others move too"
    by_rows = trained(LAZY[name](), size=ROWS, in_rows=True)
    dense = trained(LAZY[name](), size=ROWS, in_rows=False)
    tolerance = 1e-6 if name == "rmsprop" else 0  # whose kernels round the mean otherwise
    for part, value in dense.items():
        np.testing.assert_allclose(by_rows[part], value, tolerance, tolerance, err_msg=part)


@pytest.mark.parametrize("name", EXACT)
def test_rows_without_gradient_stay_as_in_the_dense_update(name):
    optimizer = EXACT[name]()
    by_rows = trained(optimizer, size=5, in_rows=True)
    assert optimizer.updates_rows(tf.zeros([ROWS, COLUMNS]))
    for part, value in trained(EXACT[name](), size=5, in_rows=False).items():
        np.testing.assert_array_equal(by_rows[part], value, part)


def test_lazy_adam_equals_numpy():
    table = np.random.RandomState(1).standard_normal([ROWS, COLUMNS])
    mean, square = np.zeros_like(table), np.zeros_like(table)
    for number, (ids, gradient) in enumerate(gradients(5), 1):
        mean[ids] += 0.1 * (gradient - mean[ids])
        square[ids] += 0.001 * (gradient.astype(float) ** 2 - square[ids])
        rate = 0.01 * np.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        table[ids] -= rate * mean[ids] / (np.sqrt(square[ids]) + 1e-7)
    by_rows = trained(adam(0.01), size=5, in_rows=True)
    np.testing.assert_allclose(by_rows["table"], table, atol=2e-6)
    untouched = ~np.isin(np.arange(ROWS), np.concatenate([ids for ids, _ in gradients(5)]))
    assert untouched.any()
    assert not by_rows["m"][untouched].any()
