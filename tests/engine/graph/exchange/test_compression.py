"""Gradients in 16 bits: rounded once, of any size, without overflow; nothing else is rounded."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import mirrored
from trainer.engine.graph.exchange.collectives import CompressedExchange

RELATIVE = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""One rounding: bfloat16 has 8 bits, float16 has 11."""


@pytest.fixture(scope="module")
def strategy():
    return mirrored(2)


def summed(strategy, dtype, steps, others=(1.0,)):
    """Sum each of `steps`, pairs of arrays for two replicas; return the sums."""
    compressed = CompressedExchange(tf.as_dtype(dtype))

    @tf.function
    def step(first, second):
        def of_replica():
            context = tf.distribute.get_replica_context()
            mine = tf.where(context.replica_id_in_sync_group == 0, first, second)
            return compressed(context, [mine], [tf.constant(x) for x in others])

        return tf.nest.map_structure(strategy.experimental_local_results, strategy.run(of_replica))

    results = []
    for pair in steps:
        ([(one, two)], exact) = step(*(tf.constant(x, tf.float32) for x in pair))
        assert np.array_equal(one.numpy(), two.numpy(), equal_nan=True)
        results.append((one.numpy(), [float(x) for x, _ in exact]))
    return results


@pytest.mark.parametrize("dtype", RELATIVE)
def test_sum_is_right_to_the_bits_of_the_type(strategy, dtype):
    random = np.random.default_rng(0)
    steps = [(random.normal(size=(40, 3)), random.normal(size=(40, 3))) for _ in range(3)]
    for (total, _), (first, second) in zip(summed(strategy, dtype, steps), steps, strict=True):
        error = np.abs(total - (first + second)).max()
        # Each of the two is rounded, and so is their sum, which is up to twice as large.
        assert 0 < error <= 4 * RELATIVE[dtype] * np.abs([first, second]).max()


@pytest.mark.parametrize("size", [0.0, 1e-25, 1e-6, 1e37])
def test_float16_scale_follows_size_of_gradient_within_the_step(strategy, size):
    first, large = np.array([1e-3, -1e-3]), np.array([1.0, -0.5, 1e-3, 0.25][:2]) * size
    # Two models of a task take turns.
    for total, _ in summed(strategy, "float16", [(first, first), (large, large)] * 2)[1::2]:
        assert total == pytest.approx(2 * large, rel=2.0**-9)


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_gradient_that_is_not_finite_stays_so_on_all_replicas(strategy, dtype, bad):
    values = [(np.array([bad, 1.0]), np.array([1.0, 1.0])), (np.ones(2), np.ones(2))]
    (total, exact), (after, _) = summed(strategy, dtype, values)
    assert not np.isfinite(total[0])
    assert exact == [2.0]
    assert (after == 2).all()


@pytest.mark.parametrize("dtype", RELATIVE)
def test_other_tensors_are_not_rounded(strategy, dtype):
    others = (1.0 + 2.0**-20, 123456.0)
    assert summed(strategy, dtype, [(np.ones(2), np.ones(2))], others)[0][1] == [
        2 * x for x in others
    ]
