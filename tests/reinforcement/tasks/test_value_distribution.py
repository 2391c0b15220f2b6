"""The projection of a distribution onto atoms, against a loop in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.reinforcement.tasks.value_distribution import Support


def reference(values, probabilities, low, high, num_atoms):
    """Share each value's probability between the two atoms around it, in float64."""
    result = np.zeros(num_atoms)
    for value, probability in zip(values, probabilities, strict=True):
        place = (min(max(value, low), high) - low) / (high - low) * (num_atoms - 1)
        below = int(np.floor(place))
        above = min(below + 1, num_atoms - 1)
        result[below] += probability * (1 - (place - below))
        result[above] += probability * (place - below)
    return result


@pytest.mark.parametrize("num_atoms", [2, 11, 51])
def test_projection_is_that_of_a_loop(num_atoms):
    rng = np.random.default_rng(num_atoms)
    low, high = -3.0, 2.0
    values = rng.normal(0.0, 3.0, [4, 5, num_atoms])
    values[0, 0] = np.linspace(low, high, num_atoms)  # on the atoms
    probabilities = rng.dirichlet(np.ones(num_atoms), [4, 5])
    found = Support(low, high, num_atoms).project(
        tf.constant(values, tf.float32), tf.constant(probabilities, tf.float32)
    )
    wanted = [
        [reference(v, p, low, high, num_atoms) for v, p in zip(*pair, strict=True)]
        for pair in zip(values, probabilities, strict=True)
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(np.sum(found, axis=-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(found[0, 0], probabilities[0, 0], atol=1e-6)


def test_projection_keeps_the_mean_of_values_within_the_atoms():
    rng = np.random.default_rng(0)
    support = Support(-1.0, 1.0, 21)
    values = rng.uniform(-1.0, 1.0, [100, 7]).astype(np.float32)
    probabilities = rng.dirichlet(np.ones(7), 100).astype(np.float32)
    found = support.project(tf.constant(values), tf.constant(probabilities))
    mean = support.mean(tf.math.log(found))
    np.testing.assert_allclose(mean, (values * probabilities).sum(-1), atol=1e-6)
