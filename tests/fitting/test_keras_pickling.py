"""Models of both Kerases come back as they were, and fresh weights are no part of what they are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.fitting import initial_draws
from trainer.fitting.carried import carried, load
from trainer.fitting.keras_pickling import library_of

KINDS = {"tf_keras": tf.keras, "keras": keras}
MATRIX = np.arange(16, dtype=np.float32).reshape(4, 4) / 10

initial_draws.watch()


def classes(library):
    """Return classes without get_config, which cannot be imported."""
    layers = library.layers

    class Scale(layers.Layer):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def build(self, shape):
            self.gate = self.add_weight(
                shape=(shape[-1],), initializer="random_normal", name="gate"
            )

        def call(self, inputs):
            return inputs * self.gate * self.factor

    class Net(library.Model):
        def __init__(self, units, inner):
            super().__init__()
            draw = tf.random_normal_initializer(0.0, 0.02)
            self.first = layers.Dense(units, kernel_initializer=draw)
            self.inner = inner
            self.blocks = [layers.Dense(3, "relu"), Scale(2.0)]
            self.heads = {"a": layers.Dense(2)}

        def call(self, inputs):
            outputs = self.inner(self.first(inputs @ MATRIX))
            for block in self.blocks:
                outputs = block(outputs)
            return self.heads["a"](outputs)

    class Adversarial(library.Model):
        def __init__(self, critic, maker):
            super().__init__()
            self.critic, self.maker = critic, maker

        def compile(self, first, second, judge):
            super().compile()
            self.first, self.second, self.judge = first, second, judge

        def call(self, inputs):
            return self.critic(self.maker(inputs))

        @tf.function
        def traced(self, inputs):
            return self(inputs)

    return Scale, Net, Adversarial


def sequential(library, rate=0.1):
    layers = library.layers
    model = library.Sequential(
        [
            layers.InputLayer([4]), layers.Dense(3, kernel_regularizer="l2"), layers.Dropout(0.5),
            layers.BatchNormalization(), layers.Dense(2),
        ]
    )  # fmt: skip
    schedule = library.optimizers.schedules.ExponentialDecay(rate, 5, 0.9)
    model.compile(library.optimizers.Adam(schedule), "mse", metrics=["mae"])
    return model


def functional(library):
    layers = library.layers
    scale, _, _ = classes(library)
    first, second = library.Input([4], name="first"), library.Input([4], name="second")
    dense = layers.Dense(3)
    both = layers.Concatenate()([dense(first), dense(second) * 2.0])
    output = layers.Lambda(lambda x: x @ MATRIX[:2, :1])(layers.Dense(2)(scale(3.0)(both + both)))
    model = library.Model({"first": first, "second": second}, {"a": output, "b": both})

    def distance(label, output):
        return (label - output) ** 2

    model.compile("adam", {"a": "mse", "b": distance})
    return model


def subclassed(library, *, is_built=True, units=4):
    _, net, _ = classes(library)
    model = net(units, library.Sequential([library.layers.Dense(3)]))
    model.compile("sgd", "mse")
    if is_built:
        model(np.ones([1, 4], np.float32))
    return model


class Whole(keras.Model):
    """A functional model of a class that is imported."""


class WholeOfTfKeras(tf.keras.Model):
    """A functional model of tf_keras, of a class that is imported."""


def imported(library):
    inputs = library.Input([4])
    outputs = library.layers.Dense(2)(inputs)
    model = (Whole if library is keras else WholeOfTfKeras)(inputs, outputs)
    if library is not keras:
        model.add_loss(tf.reduce_mean(outputs**2))
        model.add_metric(tf.reduce_mean(outputs), name="mean")
    model.extra = 3
    model.compile("sgd", "mse")
    return model


def adversarial(library):
    _, _, kind = classes(library)
    parts = [
        library.Sequential([library.layers.InputLayer([size]), library.layers.Dense(other)])
        for size, other in ((3, 1), (4, 3))
    ]
    model = kind(*parts)
    optimizers = [library.optimizers.Adam(rate) for rate in (0.25, 0.5)]
    model.compile(*optimizers, library.losses.BinaryCrossentropy(from_logits=True))
    model(np.ones([1, 4], np.float32))
    return model


def many_layers(library):
    layers = library.layers
    inputs = library.Input([6, 6, 3])
    pixels = layers.Reshape([-1, 4])(layers.Conv2D(4, 3)(layers.RandomFlip()(inputs)))
    row = layers.Reshape([1, 6])(
        layers.LayerNormalization()(layers.Bidirectional(layers.LSTM(3))(pixels))
    )
    model = library.Model(inputs, layers.MultiHeadAttention(2, 2)(row, row))
    model.compile("sgd", "mse")
    return model


def shared(library):
    """A model that calls another one twice."""
    layers = library.layers
    embedded = library.Input([4])
    embedding = library.Model(embedded, layers.Dense(3, "relu")(embedded))
    inputs = library.Input([4])
    model = library.Model(inputs, layers.Add()([embedding(inputs), embedding(inputs)]))
    model.compile("sgd", "mse")
    return model


def trained(library):
    class Half(library.optimizers.schedules.LearningRateSchedule):
        """Without `get_config`."""

        def __call__(self, step):
            return 0.5

    model = sequential(library)
    model.compile(library.optimizers.Adam(Half()), "mse")
    model.fit(np.ones([8, 4]), np.ones([8, 2]), verbose=0)
    return model


ONES = np.ones([2, 4], np.float32)
FEATURES = {
    functional: {"first": ONES, "second": 2 * ONES},
    many_layers: np.ones([2, 6, 6, 3], np.float32),
}


@pytest.mark.parametrize(
    "make",
    [sequential, functional, subclassed, imported, adversarial, many_layers, shared, trained],
)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_come_back_as_they_are_and_fresh_weights_name_none(kind, make, tmp_path):
    model, again = make(KINDS[kind]), make(KINDS[kind])
    for item in (model, again):
        initial_draws.repeat_draws(item)
    path = carried(model, "model", tmp_path)
    if make is not trained:
        assert carried(again, "model", tmp_path) == path
        first = next(weight for weight in again.trainable_weights if len(weight.shape) > 1)
        first.assign(np.ones(first.shape))
        changed = carried(again, "model", tmp_path)
        assert changed != path
        matrices = (w for w in load(changed).trainable_weights if len(w.shape) > 1)
        np.testing.assert_array_equal(next(matrices), np.ones(first.shape))
    features = FEATURES.get(make, ONES)
    loaded = load(path)
    assert type(loaded) is type(model)
    assert library_of(loaded) is library_of(model)
    assert [w.shape for w in loaded.weights] == [w.shape for w in model.weights]
    loaded.set_weights(model.get_weights())
    tf.nest.map_structure(
        np.testing.assert_allclose, loaded.predict(features), model.predict(features)
    )
    if make is adversarial:
        assert float(loaded.second.learning_rate) == 0.5
        np.testing.assert_allclose(loaded.traced(features), model.traced(features))
    else:
        labels = loaded.predict(features)
        assert loaded.evaluate(features, labels) == pytest.approx(model.evaluate(features, labels))
        loaded.fit(features, labels, verbose=0)
    if make is trained:
        assert float(loaded.optimizer.learning_rate) == 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_layers_made_after_loading_are_tracked(kind, tmp_path):
    loaded = load(carried(subclassed(KINDS[kind], is_built=False), "model", tmp_path))
    loaded.fit(ONES, np.ones([2, 2]), verbose=0)
    assert len(loaded.trainable_weights) == 9
    tf.train.Checkpoint(model=loaded).write(str(tmp_path / "weights"))


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_kept(kind, tmp_path):
    library = KINDS[kind]
    table = library.layers.TextVectorization(standardize=lambda text: text)
    table.adapt(["A b c", "c d"])
    inputs = library.Input([1], dtype="string")
    model = library.Model(inputs, library.layers.Embedding(10, 3)(table(inputs)))
    loaded = load(carried(model, "model", tmp_path))
    assert loaded.layers[1].get_vocabulary() == table.get_vocabulary()
    np.testing.assert_array_equal(loaded.layers[1](["A c"]), table(["A c"]))
    words = library.layers.StringLookup(vocabulary=np.array(["a", "b"]))
    again = load(carried(words, "words", tmp_path))
    np.testing.assert_array_equal(again(["b"]), words(["b"]))


@pytest.mark.parametrize("kind", KINDS)
def test_functions_bring_layers_losses_and_variables(kind, tmp_path):
    library = KINDS[kind]
    augment = library.Sequential([library.layers.Rescaling(2.0), library.layers.RandomFlip()])
    judge = library.losses.BinaryCrossentropy(from_logits=True)
    factor = tf.Variable(3.0)

    def make():
        return augment(np.ones([1, 4, 4, 1])) * factor, judge([[1.0]], [[0.0]])

    outputs, loss = load(carried(make, "model", tmp_path))()
    np.testing.assert_array_equal(outputs, np.full([1, 4, 4, 1], 6.0))
    assert float(loss) == pytest.approx(np.log(2))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_fresh_weights_are_drawn_alike_from_the_seed(kind, tmp_path):
    library = KINDS[kind]
    layers = [library.layers.Dense(3) for _ in range(2)]
    for layer in layers:
        layer.build((None, 4))
    layers[1].set_weights(layers[0].get_weights())
    path = carried(layers, "model", tmp_path)
    values = []
    for seed in (1, 1, 2):
        library.utils.set_random_seed(seed)
        first, second = load(path)
        np.testing.assert_array_equal(first.kernel, second.kernel)
        values.append(first.get_weights()[0])
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])
    assert not np.array_equal(values[0], layers[0].get_weights()[0])
