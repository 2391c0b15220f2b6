"""What depends on the layout is found in the graph, with its place in the user's code."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support import toy_ops
from trainer.engine.graph.checks.layout_dependence import find
from trainer.engine.graph.randomness.random_functions import convert_draws
from trainer.engine.graph.randomness.random_layers import make_stateless
from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, split_part

convert_draws()

SIZE = 8


def findings(layer, *, sharded=True):
    """Return what is found in the step of a model with a layer, in a loop over two shards."""
    model = tf.keras.Sequential([tf.keras.Input((3,)), layer, tf.keras.layers.Dense(2)])
    make_stateless(model)

    @tf.function(autograph=False)
    def step(features):
        enter = split_part(2)

        def shard(number, total):
            with enter(number), tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(features[: SIZE // 2], training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            return number + 1, total + tf.reduce_sum(gradients[0])

        return tf.while_loop(lambda number, _: number < 2, shard, (0, 0.0))[1]

    with batch_part(BatchPart(lambda: tf.constant([5, 6], tf.int64), SIZE, 0)):
        concrete = step.get_concrete_function(tf.TensorSpec([SIZE, 3]))
    return find(concrete.graph, sharded=sharded)


def line_of(text):
    """Return where a text stands in the support file: `file:line`."""
    path = Path(toy_ops.__file__)
    (line,) = [
        number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line
    ]
    return f"{path.relative_to(Path.cwd())}:{line}"


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("RandomStandardNormal", toy_ops.raw_normal),
        ("ParameterizedTruncatedNormal", lambda s: tf.raw_ops.ParameterizedTruncatedNormal(
            shape=s, means=0.0, stdevs=1.0, minvals=-1.0, maxvals=1.0)),
        ("StatelessRandomNormalV2", lambda s: tf.random.stateless_normal(s, [1, 2])),
    ],
)  # fmt: skip
def test_draws_of_ones_own_are_found_with_layer_and_line(name, draw):
    (finding,) = findings(toy_ops.Draw(draw, name="noise"))
    assert finding.operation == name
    assert finding.scope.split("/")[1] == "noise"
    assert finding.place
    assert "not cut as the batch is" in finding.reason


def test_draw_is_named_by_the_innermost_line_of_the_user():
    (finding,) = findings(toy_ops.Draw(toy_ops.raw_normal))
    assert finding.place == line_of("tf.raw_ops.RandomStandardNormal(")
    assert str(finding).startswith(f"{finding.place}: RandomStandardNormal in ")


def test_generators_and_python_code_are_found():
    generator = tf.random.Generator.from_seed(1)
    assert findings(
        toy_ops.Draw(lambda shape: tf.cast(generator.uniform_full_int(shape), "float32"))
    )

    def normal(shape):
        return np.random.normal(size=shape).astype(np.float32)

    def by_numpy(shape):
        return tf.ensure_shape(tf.numpy_function(normal, [shape], tf.float32), [SIZE // 2, 3])

    (finding,) = findings(toy_ops.Draw(by_numpy))
    assert "Python code" in finding.reason


@pytest.mark.parametrize(
    "layer",
    [
        lambda: tf.keras.layers.Dropout(0.5),
        lambda: tf.keras.layers.GaussianNoise(0.5),
        lambda: toy_ops.Draw(tf.random.normal),
    ],
)
def test_draws_of_keras_layers_are_not_found(layer):
    assert findings(layer()) == []
    assert findings(layer(), sharded=False) == []


def test_seed_of_a_layer_covers_a_draw_only_with_shards():
    class Truncated(tf.keras.layers.Dropout):
        def call(self, x, training=False):
            if not training:
                return x
            seed = self._random_generator.make_seed_for_stateless_op()
            return x + tf.random.stateless_truncated_normal(tf.shape(x), seed)

    assert findings(Truncated(0.5)) == []
    (finding,) = findings(Truncated(0.5), sharded=False)
    assert "cannot be cut" in finding.reason


def test_collective_in_a_model_is_found():
    model = tf.keras.Sequential([tf.keras.Input((3,)), toy_ops.Shared(name="shared")])

    @tf.function(autograph=False)
    def step(features):
        return tf.distribute.OneDeviceStrategy("CPU:0").run(model, args=(features,))

    found = find(step.get_concrete_function(tf.TensorSpec([SIZE, 3])).graph, sharded=True)
    (finding,) = found
    assert (finding.operation, finding.place) == ("all_reduce", line_of('.all_reduce("mean"'))
    assert "collective" in finding.reason
