"""Random layers: a part of the global batch draws its slice of the global batch's draw."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.randomness.random_layers import LayerDraws, layers_of, make_stateless
from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, fold_seed, split_part
from trainer.errors import ConfigError

RATE = 0.5
GLOBAL_SIZE = 24
SEED = (5, 6)


def part(number=0, parts=1, seed=SEED, size=GLOBAL_SIZE):
    """Return part `number` of `parts` equal ones of a global batch."""
    constant = seed if tf.is_tensor(seed) else tf.constant(seed, tf.int64)
    return BatchPart(lambda: constant, size // parts, number)


def dropout_model(name="model"):
    inputs = tf.keras.Input((64,))
    x = tf.keras.layers.Dropout(RATE)(inputs)
    return tf.keras.Model(inputs, [x, tf.keras.layers.Dropout(RATE)(inputs)], name=name)


def masks(model, seed=SEED, number=0, parts=1):
    """Return which of the inputs each random layer of a model keeps."""
    with batch_part(part(number, parts, seed)):
        return [
            output.numpy() != 0
            for output in tf.nest.flatten(model(tf.ones([GLOBAL_SIZE // parts, 64]), training=True))
        ]


def different(a, b):
    return np.mean(a != b) > 0.3


DRAWS = {
    "uniform": lambda draws, shape, dtype: draws.random_uniform(shape, -1.0, 2.0, dtype=dtype),
    "normal": lambda draws, shape, dtype: draws.random_normal(shape, 1.0, 3.0, dtype=dtype),
    "dropout": lambda draws, shape, dtype: draws.dropout(tf.ones(shape, dtype), RATE),
    "integers": lambda draws, shape, dtype: draws.random_uniform(shape, 0, 1000, dtype=tf.int32),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("per_example", [1, 3, 4, 10])
def test_parts_draw_slices_of_the_whole(name, dtype, per_example):
    def draw(number, parts):
        with batch_part(part(number, parts)):
            shape = [GLOBAL_SIZE // parts, per_example]
            return tf.cast(DRAWS[name](LayerDraws(3), shape, dtype), tf.float64).numpy()

    whole = draw(0, 1)
    assert len(np.unique(whole)) > (1 if name == "dropout" else 20)
    for parts in (2, 3, 8, 24):
        slices = [draw(number, parts) for number in range(parts)]
        assert np.concatenate(slices).tobytes() == whole.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_slices_of_parts_known_only_in_the_graph_are_the_same(jit):
    def compiled(parts, per_example):
        @tf.function(autograph=False, jit_compile=jit)
        def draw(number):
            with batch_part(part(number, parts)):
                return LayerDraws(3).random_normal([GLOBAL_SIZE // parts, per_example])

        return np.concatenate([draw(tf.constant(number)) for number in range(parts)])

    for per_example in (2, 3):
        whole = compiled(1, per_example)
        for parts in (2, 8):
            assert compiled(parts, per_example).tobytes() == whole.tobytes()


def test_uniform_and_normal_draws_have_their_distribution():
    with batch_part(part(size=4000)):
        uniform = LayerDraws(0).random_uniform([4000, 10], 2.0, 4.0).numpy()
        normal = LayerDraws(1).random_normal([4000, 10], 5.0, 2.0).numpy()
    assert uniform.min() >= 2.0
    assert uniform.max() < 4.0
    np.testing.assert_allclose(uniform.mean(), 3.0, atol=0.02)
    np.testing.assert_allclose([normal.mean(), normal.std()], [5.0, 2.0], atol=0.05)
    assert abs(np.corrcoef(uniform[:-1, 0], uniform[1:, 0])[0, 1]) < 0.08


def test_seed_and_draw_of_unknown_shape_differ_between_parts():
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None]), tf.TensorSpec([])])
    def draw(x, number):
        with batch_part(part(tf.cast(number, tf.int64), 4)):
            return LayerDraws(0).random_uniform(tf.shape(x)), LayerDraws(1).seed()

    first, second = draw(tf.zeros([64]), 0.0), draw(tf.zeros([64]), 1.0)
    for a, b in zip(first, second, strict=True):
        assert not np.array_equal(a, b)
    for a, b in zip(first, draw(tf.zeros([64]), 0.0), strict=True):
        np.testing.assert_array_equal(a, b)


def test_split_parts_count_calls_from_where_they_began():
    draws = LayerDraws(0)

    def pair(size):
        return [draws.random_uniform([size, 4]).numpy() for _ in range(2)]

    with batch_part(part()):
        before, whole = pair(GLOBAL_SIZE)[0], pair(GLOBAL_SIZE)
        after = pair(GLOBAL_SIZE)[0]
    with batch_part(part()):
        np.testing.assert_array_equal(pair(GLOBAL_SIZE)[0], before)
        enter, slices = split_part(3), []
        for number in range(3):
            with enter(number):
                slices.append(pair(GLOBAL_SIZE // 3))
        np.testing.assert_array_equal(np.concatenate(slices, axis=1), whole)
        np.testing.assert_array_equal(pair(GLOBAL_SIZE)[0], after)


def test_parts_of_parts_are_numbered_through():
    draws = []
    with batch_part(part(1, 2)):
        outer = split_part(2)
        for first in range(2):
            with outer(first):
                inner = split_part(3)
                for second in range(3):
                    with inner(tf.constant(second)):
                        draws.append(LayerDraws(0).random_uniform([2, 5]).numpy())
    with batch_part(part()):
        whole = LayerDraws(0).random_uniform([GLOBAL_SIZE, 5]).numpy()
    np.testing.assert_array_equal(np.concatenate(draws), whole[GLOBAL_SIZE // 2 :])


def test_private_names_of_keras_are_where_they_were():
    layer = tf.keras.layers.Dropout(RATE)
    moved = f"tf_keras has moved a private name that {LayerDraws.__module__} relies on"
    assert hasattr(layer, "_random_generator"), moved
    generator = layer._random_generator
    assert hasattr(generator, "_rng_type"), moved
    assert generator.RNG_STATELESS == "stateless", moved
    for name in ("make_seed_for_stateless_op", "random_uniform", "random_normal", "dropout"):
        assert callable(getattr(generator, name)), moved


def test_only_unpatched_dropout_keeps_state():
    model = dropout_model()
    ones = tf.ones([GLOBAL_SIZE, 64])  # outside of a part: there TensorFlow's own draws are cut too
    assert different(*(model(ones, training=True)[0].numpy() != 0 for _ in range(2)))
    assert make_stateless(model) == 2
    first = masks(model)
    for _ in range(3):
        np.testing.assert_array_equal(masks(model), first)
    assert not model.variables


def test_masks_differ_between_steps_parts_and_layers():
    model = dropout_model()
    make_stateless(model)
    here = masks(model, fold_seed(0, tf.constant(7)), 0, 2)
    next_step = masks(model, fold_seed(0, tf.constant(8)), 0, 2)
    next_part = masks(model, fold_seed(0, tf.constant(7)), 1, 2)
    assert different(here[0], here[1])
    for a, b, c in zip(here, next_step, next_part, strict=True):
        assert different(a, b)
        assert different(a, c)
        assert different(b, c)
        assert 0.4 < a.mean() < 0.6


def test_two_models_of_a_task_differ_by_their_offset():
    first, second, same = dropout_model(), dropout_model(), dropout_model()
    offset = make_stateless(first)
    make_stateless(second, offset)
    make_stateless(same)
    assert different(masks(first)[0], masks(second)[0])
    np.testing.assert_array_equal(masks(first), masks(same))


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


def image_layers():
    return [
        tf.keras.layers.RandomFlip(),
        tf.keras.layers.RandomTranslation(0.3, 0.3),
        tf.keras.layers.RandomRotation(0.2),
        tf.keras.layers.RandomZoom(0.3),
        tf.keras.layers.RandomBrightness(0.3),
        tf.keras.layers.SpatialDropout2D(RATE),
        tf.keras.layers.AlphaDropout(RATE),
        tf.keras.layers.GaussianDropout(RATE),
        tf.keras.layers.GaussianNoise(1.0),
    ]


@pytest.mark.parametrize("layer", image_layers(), ids=lambda layer: type(layer).__name__)
def test_layers_of_keras_draw_for_the_global_batch(layer):
    inputs = tf.keras.Input((6, 6, 3))
    model = tf.keras.Model(inputs, layer(inputs, training=True))
    assert make_stateless(model) == 1
    images = np.random.RandomState(0).uniform(0, 255, (GLOBAL_SIZE, 6, 6, 3)).astype(np.float32)

    def run(number, parts):
        size = GLOBAL_SIZE // parts

        @tf.function(autograph=False)
        def step(batch):
            with batch_part(part(number, parts)):
                return model(batch, training=True)

        return step(tf.constant(images[number * size : (number + 1) * size])).numpy()

    whole = run(0, 1)
    assert not np.array_equal(whole, images)
    slices = np.concatenate([run(number, 4) for number in range(4)])
    # Not to the bit: the last numbers of a tensor are rounded otherwise by a vectorized sine.
    np.testing.assert_allclose(slices, whole, rtol=1e-5)


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
    runs = []
    for _ in range(2):
        with batch_part(part(size=8)):
            runs.append([output.numpy() for output in model(tf.ones([8, 64]), training=True)])
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert make_stateless(tf.keras.Sequential([tf.keras.layers.Dense(2)])) == 0


class Homemade(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__(name="homemade")
        self._random_generator = object()

    def call(self, x):
        return x


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SimpleRNN", "GRU", "LSTM"])
def test_recurrent_dropout_is_found_in_a_model_that_was_called_in_several_graphs(kind):
    layer = getattr(tf.keras.layers, kind)(4, dropout=RATE, recurrent_dropout=RATE)
    model = tf.keras.Sequential([tf.keras.Input((8, 8)), layer])
    inputs = tf.random.stateless_normal([GLOBAL_SIZE, 8, 8], SEED)

    @tf.function
    def outputs(number, parts):
        size = GLOBAL_SIZE // parts
        with batch_part(part(number, parts)):
            return model(inputs[number * size : (number + 1) * size], training=True)

    assert make_stateless(model) > 0
    whole = outputs(0, 1).numpy()
    assert different(whole, model(inputs).numpy())
    halves = np.concatenate([outputs(number, 2).numpy() for number in range(2)])
    np.testing.assert_allclose(halves, whole, rtol=1e-5, atol=1e-6)
    assert make_stateless(model) > 0


def test_generator_of_another_kind_is_refused():
    with pytest.raises(ConfigError) as caught:
        make_stateless(tf.keras.Sequential([Homemade()]))
    assert (
        str(caught.value)
        == "layer homemade (Homemade) keeps random state that no checkpoint holds; "
        "use a stateless layer"
    )


def test_layers_that_a_dataset_has_draw_statelessly():
    class Data:
        def __init__(self):
            self.size = 3
            self.augment = {"noise": tf.keras.layers.GaussianNoise(1.0)}

    data = Data()
    assert make_stateless(layers_of(data)) == 1
    with batch_part(part()):
        first = data.augment["noise"](tf.zeros([GLOBAL_SIZE, 3]), training=True)
    with batch_part(part()):
        again = data.augment["noise"](tf.zeros([GLOBAL_SIZE, 3]), training=True)
    assert np.ptp(first) > 0
    assert first.numpy().tobytes() == again.numpy().tobytes()
    assert make_stateless(layers_of(object())) == 0
