"""V-trace against its definition in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.reinforcement.tasks.impala import vtrace


def by_definition(log_ratios, rewards, discounts, values, rho_clip=1.0, c_clip=1.0):
    """Return equation 1 of Espeholt et al. (2018), and its advantages, for one unroll: [T]."""
    length = len(rewards)
    rho = np.minimum(rho_clip, np.exp(log_ratios))
    c = np.minimum(c_clip, np.exp(log_ratios))
    targets = np.zeros(length + 1)
    targets[length] = values[length]
    for s in range(length):
        targets[s] = values[s]
        for t in range(s, length):
            delta = rho[t] * (rewards[t] + discounts[t] * values[t + 1] - values[t])
            targets[s] += np.prod(discounts[s:t]) * np.prod(c[s:t]) * delta
    advantages = rho * (rewards + discounts * targets[1:] - values[:-1])
    return targets[:-1], advantages


def draw(seed, size, length):
    rng = np.random.default_rng(seed)
    discounts = 0.9 * (rng.uniform(size=(size, length)) > 0.2)
    return (
        rng.normal(size=(size, length)), rng.normal(size=(size, length)), discounts,
        rng.normal(size=(size, length + 1)),
    )  # fmt: skip


def compute(inputs, is_step, **clips):
    return vtrace(*(tf.constant(array, tf.float64) for array in (*inputs, is_step)), **clips)


@pytest.mark.parametrize("clips", [{}, {"rho_clip": 2.0, "c_clip": 0.7}], ids=str)
def test_targets_and_advantages_are_those_of_the_definition(clips):
    inputs = draw(0, 3, 7)
    targets, gains = compute(inputs, np.ones((3, 7)), **clips)
    for row, arrays in enumerate(zip(*inputs, strict=True)):
        values, advantages = by_definition(*arrays, **clips)
        np.testing.assert_allclose(targets[row], values, atol=1e-6)
        np.testing.assert_allclose(gains[row], advantages, atol=1e-6)


def test_row_that_only_resets_divides_an_unroll_in_two():
    log_ratios, rewards, discounts, values = draw(2, 1, 7)
    is_step = np.ones((1, 7))
    is_step[0, 3] = 0.0
    targets, gains = compute((log_ratios, rewards, discounts, values), is_step)
    for begin, end in ((0, 3), (4, 7)):
        arrays = [array[0, begin:end] for array in (log_ratios, rewards, discounts)]
        expected, advantages = by_definition(*arrays, values[0, begin : end + 1])
        np.testing.assert_allclose(targets[0, begin:end], expected, atol=1e-6)
        np.testing.assert_allclose(gains[0, begin:end], advantages, atol=1e-6)
    np.testing.assert_allclose(targets[0, 3], values[0, 3])
    np.testing.assert_allclose(gains[0, 3], 0.0)
