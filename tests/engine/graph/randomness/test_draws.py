"""Random functions and layers draw the global batch's slice while a step is traced."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.randomness.draws import convert_draws
from trainer.engine.graph.randomness.randomness import (
    BatchPart,
    batch_part,
    evaluated_part,
    fold_seed,
    next_seed,
    part_of_size,
    repeatable,
    split_part,
)
from trainer.errors import ConfigError

convert_draws()

SIZE = 24
ALPHA = tf.reshape(tf.range(1.0, 1.0 + 3 * SIZE), [SIZE, 3])

backend = tf.keras.backend
layers = tf.keras.layers
generator = tf.random.Generator.from_seed(1)

DRAWS = {
    "normal": lambda n, rows: tf.random.normal([n, 3], 1.0, 2.0),
    "uniform": lambda n, rows: tf.random.uniform([n, 3], -1.0, 2.0),
    "half": lambda n, rows: tf.random.uniform([n, 3], dtype=tf.float16),
    "bfloat16": lambda n, rows: tf.random.normal([n, 1], dtype=tf.bfloat16),
    "double": lambda n, rows: tf.random.normal([n, 5], dtype=tf.float64),
    "integers": lambda n, rows: tf.random.uniform([n, 3], 0, tf.constant(1000), tf.int32),
    "truncated_normal": lambda n, rows: tf.random.truncated_normal([n, 3]),
    "categorical": lambda n, rows: tf.random.categorical(rows, 5),
    "gamma": lambda n, rows: tf.random.gamma([n, 2], 2.0, 3.0),
    "gamma of each example": lambda n, rows: tf.random.gamma([], rows),
    "poisson": lambda n, rows: tf.random.poisson([n], 4.0),
    "poisson of each example": lambda n, rows: tf.random.poisson([], rows),
    "tf.nn.dropout": lambda n, rows: tf.nn.dropout(tf.ones([n, 8]), 0.5),
    "backend.random_normal": lambda n, rows: backend.random_normal((tf.shape(rows)[0], 3)),
    "backend.random_uniform": lambda n, rows: backend.random_uniform([n, 3]),
    "backend.truncated_normal": lambda n, rows: backend.truncated_normal([n, 3]),
    "backend.random_bernoulli": lambda n, rows: backend.random_bernoulli([n, 30], 0.5),
    "backend.dropout": lambda n, rows: backend.dropout(tf.ones([n, 8]), 0.5),
    "Generator.normal": lambda n, rows: generator.normal([n, 3], 1.0),
    "Generator.uniform": lambda n, rows: generator.uniform([n, 3], maxval=9, dtype=tf.int32),
    "Generator.truncated_normal": lambda n, rows: generator.truncated_normal([n, 3]),
}


def part(number=0, parts=1, step=0, size=SIZE):
    return BatchPart(lambda: fold_seed(7, step), size // parts, number, parts)


def traced(function, entered):
    """Return what a function draws for a part, and the operations of its graph."""

    @tf.function(autograph=False)
    def run():
        with batch_part(entered):
            return function()

    kinds = [operation.type for operation in run.get_concrete_function().graph.get_operations()]
    return run().numpy(), kinds


def draw(name, number=0, parts=1, step=0):
    size = SIZE // parts
    rows = ALPHA[number * size : (number + 1) * size]
    return traced(lambda: DRAWS[name](size, rows), part(number, parts, step))[0]


@pytest.mark.parametrize("name", DRAWS)
def test_parts_draw_slices_of_the_whole(name):
    whole = draw(name)
    assert (whole == draw(name)).all(), "the same step draws the same"
    assert (whole != draw(name, step=1)).any()
    for parts in (2, 3, 8):
        slices = [draw(name, number, parts) for number in range(parts)]
        assert np.concatenate(slices).tobytes() == whole.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_slices_of_parts_known_only_in_the_graph_are_the_same(jit):
    def compiled(parts, per_example):
        @tf.function(autograph=False, jit_compile=jit)
        def draw(number):
            with batch_part(part(number, parts)):
                return tf.random.normal([SIZE // parts, per_example])

        return np.concatenate([draw(tf.constant(number)) for number in range(parts)])

    for per_example in (2, 3):
        whole = compiled(1, per_example)
        for parts in (2, 8):
            assert compiled(parts, per_example).tobytes() == whole.tobytes()


def test_distributions_are_those_of_tensorflow():
    def drawn(function):
        with batch_part(part()):
            return np.asarray(function(), np.float64)

    values = drawn(lambda: tf.random.uniform([20000], 2.0, 4.0))
    assert values.min() >= 2.0
    assert values.max() < 4.0
    assert abs(values.mean() - 3.0) < 0.02
    values = drawn(lambda: tf.random.normal([20000], 5.0, 2.0))
    np.testing.assert_allclose([values.mean(), values.std()], [5.0, 2.0], atol=0.06)
    values = drawn(lambda: tf.random.truncated_normal([20000]))
    assert np.abs(values).max() <= 2.0
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 0.8796) < 0.01  # of a normal distribution cut at two deviations
    logits = tf.math.log([[0.1, 0.2, 0.7]])
    values = drawn(lambda: tf.random.categorical(logits, 20000))
    np.testing.assert_allclose(
        np.bincount(values[0].astype(int)) / 20000, [0.1, 0.2, 0.7], atol=0.02
    )
    values = drawn(lambda: tf.random.gamma([20000], 3.0, 2.0))
    assert abs(values.mean() - 1.5) < 0.03
    assert abs(values.var() - 0.75) < 0.05
    values = drawn(lambda: tf.random.poisson([20000], 4.0))
    assert abs(values.mean() - 4.0) < 0.07
    assert abs(values.var() - 4.0) < 0.3
    values = drawn(lambda: tf.random.shuffle(tf.range(50)))
    assert sorted(values) == list(range(50))
    assert list(values) != list(range(50))


def test_calls_draw_different_numbers_and_what_is_no_batch_is_shared():
    def both():
        return tf.stack([tf.random.normal([5]), tf.random.normal([5])])

    first, _ = traced(both, part(0, 2))
    second, _ = traced(both, part(1, 2))
    assert (first[0] != first[1]).all()
    np.testing.assert_array_equal(first, second)


length = tf.Variable(18)


@pytest.mark.parametrize(
    "function",
    [
        lambda: tf.random.normal([length]),
        lambda: tf.random.normal([36, 2]),  # three of each example?
        lambda: tf.random.gamma([4], tf.ones([12])),
        lambda: tf.cast(next_seed(), tf.int32),
    ],
)
def test_parts_draw_their_own_numbers_of_what_cannot_be_sliced(function):
    first, _ = traced(function, part(0, 2))  # of 12 examples
    assert (first == traced(function, part(0, 2))[0]).all()
    assert (first != traced(function, part(1, 2))[0]).any()


def test_batch_is_shuffled_only_as_a_whole():
    def shuffle():
        return tf.random.shuffle(tf.range(12))

    assert sorted(traced(shuffle, part(size=12))[0]) == list(range(12))
    with pytest.raises(ConfigError, match=r"shuffle of a batch \(12 of its 24 examples"):
        traced(shuffle, part(0, 2))


def test_without_a_global_batch_all_parts_draw_their_own_numbers():
    def of(number):
        return traced(lambda: tf.random.normal([]), part(number, size=0))[0]

    assert of(0) != of(1)


def test_gradient_flows_to_the_parameter_of_a_gamma_distribution():
    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(ALPHA)
            total = tf.reduce_sum(tf.random.gamma([], ALPHA))
        return tape.gradient(total, ALPHA)

    values, _ = traced(gradient, part())
    assert (values > 0).all()


def test_each_iteration_of_a_loop_draws_anew():
    def loop():
        def body(i, total):
            rows = tf.map_fn(
                lambda _: tf.random.normal([]), tf.range(3), fn_output_signature="float"
            )
            return i + 1, tf.cond(i >= 0, lambda: tf.concat([total[3:], rows], 0), lambda: total)

        return tf.while_loop(lambda i, _: i < 2, body, (0, tf.zeros([6])))[1]

    values, _ = traced(loop, part())
    assert len(set(values)) == 6


def test_split_parts_count_draws_from_where_they_began():
    def pair(size):
        return [tf.random.normal([size, 4]).numpy() for _ in range(2)]

    with batch_part(part()):
        before, whole, after = (pair(SIZE) for _ in range(3))
    with batch_part(part()):
        with repeatable():
            np.testing.assert_array_equal(pair(SIZE), before)
        with part_of_size(SIZE):
            np.testing.assert_array_equal(pair(SIZE), before)
        enter, slices = split_part(3), []
        for number in range(3):
            with enter(number):
                slices.append(pair(SIZE // 3))
        np.testing.assert_array_equal(np.concatenate(slices, axis=1), whole)
        np.testing.assert_array_equal(pair(SIZE), after)


def test_parts_of_parts_in_a_loop_of_the_engine_are_numbered_through():
    def sharded():
        outer, draws = split_part(2), []
        for first in range(2):
            with outer(first):
                inner = split_part(3)

                def one(second, inner=inner):
                    with inner(second):
                        return tf.random.normal([2, 5])

                draws.append(tf.map_fn(one, tf.range(3), fn_output_signature=tf.float32))
        return tf.reshape(tf.concat(draws, 0), [-1, 5])

    whole, _ = traced(lambda: tf.random.normal([SIZE, 5]), part())
    values, _ = traced(sharded, part(1, 2))
    np.testing.assert_array_equal(values, whole[SIZE // 2 :])


@pytest.mark.parametrize(("replicas", "size"), [(1, 12), (1, 4), (2, 3)])
def test_examples_of_an_evaluation_have_their_own_numbers(replicas, size):
    parts = []
    for batch in range(12 // (replicas * size)):
        for replica in range(replicas):
            context = SimpleNamespace(
                num_replicas_in_sync=replicas, replica_id_in_sync_group=replica
            )
            with evaluated_part(tf.constant(batch, tf.int64), context, size):
                parts.append(tf.random.normal([size, 2]))
    with evaluated_part(0, SimpleNamespace(num_replicas_in_sync=1, replica_id_in_sync_group=0), 12):
        whole = tf.random.normal([12, 2])
    np.testing.assert_array_equal(np.concatenate(parts), whole)


LAYERS = {
    "RandomFlip": lambda: layers.RandomFlip(),
    "RandomTranslation": lambda: layers.RandomTranslation(0.3, 0.3),
    "RandomRotation": lambda: layers.RandomRotation(0.2),
    "RandomZoom": lambda: layers.RandomZoom(0.3),
    "RandomContrast": lambda: layers.RandomContrast(0.5),
    "RandomBrightness": lambda: layers.RandomBrightness(0.3),
    "SpatialDropout2D": lambda: layers.SpatialDropout2D(0.5),
    "AlphaDropout": lambda: layers.AlphaDropout(0.5),
    "GaussianDropout": lambda: layers.GaussianDropout(0.5, seed=3),
    "stateless": lambda: layers.GaussianNoise(1.0, rng_type="stateless"),
    "recurrent": lambda: tf.keras.Sequential(
        [layers.Reshape((12, 9)), layers.LSTM(4, dropout=0.5, recurrent_dropout=0.5)]
    ),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_draw_for_the_global_batch(kind):
    inputs = tf.keras.Input((6, 6, 3))
    model = tf.keras.Model(inputs, LAYERS[kind]()(inputs))
    images = np.random.RandomState(0).uniform(0, 255, (SIZE, 6, 6, 3)).astype(np.float32)

    @tf.function(autograph=False)
    def step(batch, index, number, parts):
        with batch_part(part(number, parts, index)):
            return model(batch, training=True)

    def run(number, parts, index=0):
        size = SIZE // parts
        return step(images[number * size : (number + 1) * size], index, number, parts).numpy()

    whole = run(0, 1)
    assert not np.array_equal(whole, model(images))
    assert not np.array_equal(whole, run(0, 1, index=1))
    slices = np.concatenate([run(number, 4) for number in range(4)])
    # Not to the bit: the last numbers of a tensor are rounded otherwise by a vectorized sine.
    np.testing.assert_allclose(slices, whole, rtol=1e-5, atol=1e-6)
    assert not [v for v in model.submodules if isinstance(v, tf.random.Generator)]


def vectorized():
    return tf.vectorized_map(lambda x: x + tf.random.normal([]), tf.zeros([6]))


def test_each_call_of_a_function_draws_anew_for_its_part():
    @tf.function
    def inner(x):
        total = tf.zeros_like(x)
        for _ in tf.range(2):
            total += tf.random.normal(x.shape)
        return total

    @tf.function
    def noise(x):
        return tf.stack([inner(x), x + tf.nn.dropout(tf.ones_like(x), 0.5), inner(x)])

    zeros = tf.zeros([SIZE])
    whole, kinds = traced(lambda: tf.stack([noise(zeros), noise(zeros)]), part())
    assert not [kind for kind in kinds if kind.startswith("Random") or "Stateful" in kind]
    assert len({row.tobytes() for row in whole.reshape(6, SIZE)}) == 6
    # Parts one after the other, as shards on one device: the trace of one serves the others.
    halves, _ = traced(
        lambda: tf.concat([_entered(noise, number, 2) for number in range(2)], axis=1), part()
    )
    np.testing.assert_array_equal(halves, whole[0])
    later, _ = traced(lambda: noise(zeros), part(step=1))
    assert (later[0] != whole[0][0]).all()


def _entered(function, number, parts):
    with batch_part(part(number, parts)):
        return function(tf.zeros([SIZE // parts]))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (
            lambda: tf.raw_ops.RandomStandardNormal(shape=[6], dtype="float32"),
            "RandomStandardNormal",
        ),
        (vectorized, "RandomStandardNormal"),
        (lambda: generator.binomial([6], 1.0, 0.5), "StatefulRandomBinomial"),
    ],
)
def test_draws_that_cannot_be_converted_stay_what_they_are(function, kind):
    _, kinds = traced(function, part(0, 2))
    assert kind in kinds
