"""Stateless randomness: of seeds and parts, and of (seed, epoch, example)."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.randomness.randomness import fold_seed, normal_of, uniform


def draws(seed, epochs, indices, num_draws=4):
    return uniform(
        seed, tf.constant(epochs, tf.int64), tf.constant(indices, tf.int64), num_draws
    ).numpy()


def test_draws_depend_on_seed_epoch_and_example_alone():
    epochs, indices = np.arange(60) // 20, np.arange(60) * 7 % 20
    whole = draws(3, epochs, indices)
    order = np.random.RandomState(0).permutation(60)
    assert draws(3, epochs[order], indices[order]).tobytes() == whole[order].tobytes()
    for size in (1, 7, 30):
        parts = [draws(3, epochs[i : i + size], indices[i : i + size]) for i in range(0, 60, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_draws_are_the_same_when_compiled_and_for_any_number():
    epochs, indices = tf.constant([0, 5], tf.int64), tf.constant([9, 2], tf.int64)
    eager = uniform(1, epochs, indices, 6).numpy()
    compiled = tf.function(lambda: uniform(1, epochs, indices, 6))().numpy()
    assert eager.tobytes() == compiled.tobytes()
    assert uniform(1, epochs, indices, 2).numpy().tobytes() == eager[:, :2].tobytes()


@pytest.mark.parametrize("other", [(4, 0, 0), (3, 1, 0), (3, 0, 1)])
def test_seed_epoch_and_example_each_change_every_draw(other):
    a, b = draws(3, [0], [0], 32), draws(other[0], [other[1]], [other[2]], 32)
    assert np.all(a != b)


def test_largest_seed_and_far_epochs_work():
    drawn = draws(9007199254740991, [10**12, 2**62], [2**40, 2**62], 3)
    assert drawn.shape == (2, 3)
    assert len(np.unique(drawn)) == 6


def test_draws_are_uniform_and_uncorrelated():
    drawn = draws(0, np.zeros(20_000), np.arange(20_000), 4)
    assert drawn.dtype == np.float32
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # Standard errors: of the mean 0.002, of a tenth's share 0.0021, of a correlation 0.0071.
    np.testing.assert_allclose(drawn.mean(axis=0), 0.5, atol=0.008)
    np.testing.assert_allclose(drawn.var(axis=0), 1 / 12, atol=0.003)
    shares = np.stack(
        [np.histogram(column, bins=10, range=(0, 1))[0] / len(drawn) for column in drawn.T]
    )
    np.testing.assert_allclose(shares, 0.1, atol=0.009)
    between_draws = np.corrcoef(drawn.T) - np.eye(4)
    assert np.abs(between_draws).max() < 0.03
    next_example = [np.corrcoef(drawn[:-1, column], drawn[1:, column])[0, 1] for column in range(4)]
    next_epoch = np.corrcoef(drawn[:, 0], draws(0, np.ones(20_000), np.arange(20_000))[:, 0])[0, 1]
    assert np.abs([*next_example, next_epoch]).max() < 0.03


def test_folded_seed_depends_on_every_part_and_their_order():
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1 << 32, 0, 0), (1 << 33, 0, 0)]
    seeds = {
        tuple(fold_seed(seed, tf.constant(a), tf.constant(b)).numpy().tolist())
        for seed, a, b in keys
    }
    assert len(seeds) == len(keys)
    assert {len(seed) for seed in seeds} == {2}


def test_normal_vectors_belong_to_numbers_and_are_standard_normal():
    numbers = tf.range(5000, dtype=tf.int64)
    vectors = normal_of(numbers, 5).numpy()
    assert (vectors.shape, vectors.dtype) == ((5000, 5), np.float32)
    np.testing.assert_allclose(normal_of(numbers[3:7], 5), vectors[3:7], rtol=1e-6)
    # Five standard errors of a mean, a variance and a correlation.
    bound = 5 / np.sqrt(5000)
    assert np.abs(vectors.mean(axis=0)).max() < bound
    assert np.abs(vectors.var(axis=0) - 1).max() < bound * np.sqrt(2)
    assert np.abs(np.corrcoef(vectors, rowvar=False) - np.eye(5)).max() < bound
