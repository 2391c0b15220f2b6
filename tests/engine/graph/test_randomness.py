"""Stateless randomness: of (seed, step, replica, layer) or of (seed, epoch, example)."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.randomness import (
    fold_seed,
    folded_step_seed,
    make_stateless,
    step_seed,
    uniform,
)
from trainer.errors import ConfigError


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


def test_seed_epoch_and_example_are_not_exchangeable():
    keys = [(0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (1, 1, 0), (1, 0, 1)]
    assert len({draws(seed, [epoch], [index]).tobytes() for seed, epoch, index in keys}) == len(
        keys
    )


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


RATE = 0.5


def dropout_model(name="model"):
    inputs = tf.keras.Input((64,))
    x = tf.keras.layers.Dropout(RATE)(inputs)
    return tf.keras.Model(inputs, [x, tf.keras.layers.Dropout(RATE)(inputs)], name=name)


def masks(model, seed):
    """Return which of the inputs each random layer of a model keeps."""
    with step_seed(lambda: seed):
        return [
            output.numpy() != 0
            for output in tf.nest.flatten(model(tf.ones([8, 64]), training=True))
        ]


def different(a, b):
    return np.mean(a != b) > 0.3


def test_private_names_of_keras_are_where_they_were():
    layer = tf.keras.layers.Dropout(RATE)
    moved = "tf_keras has moved a private name that trainer.engine.graph.randomness relies on"
    assert hasattr(layer, "_random_generator"), moved
    assert hasattr(layer._random_generator, "_rng_type"), moved
    assert callable(layer._random_generator.make_seed_for_stateless_op), moved
    assert layer._random_generator.RNG_STATELESS == "stateless", moved


def test_only_unpatched_dropout_keeps_state():
    model, seed = dropout_model(), tf.constant([5, 6])
    assert different(masks(model, seed)[0], masks(model, seed)[0])
    assert make_stateless(model) == 2
    first = masks(model, seed)
    for _ in range(3):
        np.testing.assert_array_equal(masks(model, seed), first)
    assert not model.variables


def test_masks_differ_between_steps_replicas_and_layers():
    model = dropout_model()
    make_stateless(model)
    here = masks(model, fold_seed(0, tf.constant(7), tf.constant(0)))
    next_step = masks(model, fold_seed(0, tf.constant(8), tf.constant(0)))
    next_replica = masks(model, fold_seed(0, tf.constant(7), tf.constant(1)))
    assert different(here[0], here[1])
    for a, b, c in zip(here, next_step, next_replica, strict=True):
        assert different(a, b)
        assert different(a, c)
        assert different(b, c)
        assert 0.4 < a.mean() < 0.6


def test_each_micro_batch_has_another_mask():
    model, seed = dropout_model(), tf.constant([5, 6])
    make_stateless(model)
    found = []
    with step_seed(lambda: seed):
        for part in (0, 1, 0):
            with folded_step_seed(part):
                found.append(model(tf.ones([8, 64]), training=True)[0].numpy() != 0)
        whole = model(tf.ones([8, 64]), training=True)[0].numpy() != 0
    assert different(found[0], found[1])
    assert different(found[0], whole)
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(whole, masks(model, seed)[0])


def test_two_models_of_a_task_differ_by_their_offset():
    seed, first, second, same = (
        tf.constant([1, 2]),
        dropout_model(),
        dropout_model(),
        dropout_model(),
    )
    offset = make_stateless(first)
    make_stateless(second, offset)
    make_stateless(same)
    assert different(masks(first, seed)[0], masks(second, seed)[0])
    np.testing.assert_array_equal(masks(first, seed), masks(same, seed))


def test_each_replica_has_another_mask():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
    )
    with strategy.scope():
        model = dropout_model()
    make_stateless(model)

    @tf.function
    def run(step):
        def replica_step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            with step_seed(lambda: fold_seed(0, step, replica)):
                return model(tf.ones([8, 64]), training=True)[0]

        return strategy.experimental_local_results(strategy.run(replica_step))

    mine, other = (output.numpy() != 0 for output in run(tf.constant(3)))
    assert different(mine, other)
    for replica, mask in enumerate((mine, other)):
        np.testing.assert_array_equal(
            mask, masks(model, fold_seed(0, tf.constant(3), tf.constant(replica)))[0]
        )
    assert different(run(tf.constant(4))[0].numpy() != 0, mine)


class Block(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = [tf.keras.layers.Dense(4), tf.keras.layers.Dropout(RATE)]

    def call(self, x, training=None):
        for layer in self.inner:
            x = (
                layer(x, training=training)
                if isinstance(layer, tf.keras.layers.Dropout)
                else layer(x)
            )
        return x


def test_random_layers_inside_models_and_layers_are_found():
    inputs = tf.keras.Input((64,))
    nested = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(4),
            tf.keras.layers.Dropout(RATE),
            tf.keras.layers.GaussianNoise(1.0),
        ]
    )
    model = tf.keras.Model(
        inputs,
        [
            nested(inputs),
            Block()(inputs),
            tf.keras.layers.SpatialDropout1D(RATE)(inputs[:, :, None]),
        ],
    )
    assert make_stateless(model) == 4
    seed = tf.constant([1, 2])
    with step_seed(lambda: seed):
        first = [output.numpy() for output in model(tf.ones([8, 64]), training=True)]
        second = [output.numpy() for output in model(tf.ones([8, 64]), training=True)]
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert make_stateless(tf.keras.Sequential([tf.keras.layers.Dense(2)])) == 0


class Homemade(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__(name="homemade")
        self._random_generator = object()

    def call(self, x):
        return x


def test_generator_of_another_kind_is_refused():
    with pytest.raises(ConfigError) as caught:
        make_stateless(tf.keras.Sequential([Homemade()]))
    assert (
        str(caught.value)
        == "layer homemade (Homemade) keeps random state that no checkpoint holds; "
        "use a stateless layer"
    )


def test_random_layer_works_outside_a_step():
    model = dropout_model()
    make_stateless(model)
    with pytest.raises(ZeroDivisionError), step_seed(lambda: 1 / 0):
        model(tf.ones([8, 64]), training=True)
    assert model(tf.ones([8, 64]), training=False)[0].numpy().all()
    assert model(tf.ones([8, 64]), training=True)[0].shape == (8, 64)
