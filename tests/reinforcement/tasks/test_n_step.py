"""n-step returns against a loop in NumPy, and where an episode ends."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.reinforcement.tasks.n_step import n_step_returns


def reference(reward, terminated, is_step, discount, num_steps):
    """Return what follows from each row, by walking it."""
    size, length = reward.shape
    totals = np.zeros([size, length])
    factors = np.ones([size, length])
    rows = np.tile(np.arange(length), [size, 1])
    for b in range(size):
        for first in range(length):
            for row in range(first, min(first + num_steps, length)):
                if not is_step[b, row]:
                    break
                totals[b, first] += factors[b, first] * reward[b, row]
                factors[b, first] *= discount * (1 - terminated[b, row])
                rows[b, first] = row + 1
                if terminated[b, row]:
                    break
    return totals, factors, rows


def returns(reward, terminated, is_step, **options):
    arrays = (tf.constant(x, tf.float32) for x in (reward, terminated, is_step))
    return [x.numpy() for x in n_step_returns(*arrays, **options)]


@pytest.mark.parametrize("num_steps", [1, 3, 12, 40])
def test_returns_are_those_of_a_walk(num_steps):
    rng = np.random.default_rng(num_steps)
    size, length = 50, 12
    reward = rng.normal(size=[size, length])
    is_step = np.ones([size, length])
    terminated = np.zeros([size, length])
    for b in range(size):
        for row in range(length - 1):
            if is_step[b, row] and rng.random() < 0.3:  # the episode ends, the next row resets
                terminated[b, row] = rng.random() < 0.5
                is_step[b, row + 1] = 0
    reward *= is_step
    found = returns(reward, terminated, is_step, discount=0.9, num_steps=num_steps)
    wanted = reference(reward, terminated, is_step, 0.9, num_steps)
    begun = is_step > 0  # what is returned of the others means nothing
    for own, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own[begun], other[begun], atol=1e-6)


def test_terminal_state_has_no_value_and_a_time_limit_has():
    reward = [[1.0, 2.0, 0.0, 5.0]]
    is_step = [[1.0, 1.0, 0.0, 1.0]]
    terminal = returns(reward, [[0, 1, 0, 0]], is_step, discount=0.5, num_steps=3)
    limit = returns(reward, [[0, 0, 0, 0]], is_step, discount=0.5, num_steps=3)
    np.testing.assert_array_equal(terminal[0][0, [0, 1, 3]], [2.0, 2.0, 5.0])
    np.testing.assert_array_equal(terminal[1][0, [0, 1, 3]], [0.0, 0.0, 0.5])
    np.testing.assert_array_equal(limit[0][0, [0, 1, 3]], [2.0, 2.0, 5.0])
    np.testing.assert_array_equal(limit[1][0, [0, 1, 3]], [0.25, 0.5, 0.5])
    # The observation of the row that resets is the last one of the episode.
    np.testing.assert_array_equal(limit[2][0, [0, 1, 3]], [2, 2, 4])
