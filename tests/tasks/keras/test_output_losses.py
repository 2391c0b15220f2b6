"""Losses for each example: their mean is what Keras computes for the batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.tasks.keras.output_losses import losses_of

LIBRARIES = [pytest.param(tf.keras, id="tf_keras"), pytest.param(keras, id="keras")]
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 3)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 6)
WEIGHTS = np.array([1, 2, 0, 0.5, 3, 1], np.float32)


def one(loss, library, **options):
    """Return the loss of a single output."""
    (found,) = losses_of("task.loss", loss, None, ["output_1"], library, **options)
    return found


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("name", "label", "output"),
    [
        ("mse", LOGITS[:, 0], LOGITS[:, :1]),  # labels [B] beside outputs [B, 1]
        ("mae", LOGITS[::-1].copy(), LOGITS),
        ("Huber", LOGITS[::-1].copy(), LOGITS),
        ("sparse_categorical_crossentropy", CLASSES, tf.nn.softmax(LOGITS).numpy()),
        ("categorical_crossentropy", np.eye(3, dtype="f")[CLASSES], tf.nn.softmax(LOGITS).numpy()),
        ("binary_crossentropy", (LOGITS > 0).astype("f"), tf.sigmoid(LOGITS[::-1]).numpy()),
        ("mse", RNG.normal(size=(6, 4, 5)).astype("f"), RNG.normal(size=(6, 4, 5)).astype("f")),
    ],
)
def test_mean_over_the_examples_is_the_loss_of_keras(library, name, label, output):
    model = library.Sequential([library.layers.Lambda(lambda x: x)])
    model.compile("sgd", loss=name)
    model.build(output.shape)
    weights = WEIGHTS if output.ndim == 2 else np.ones_like(WEIGHTS)
    expected = model.evaluate(
        output, label, sample_weight=weights if output.ndim == 2 else None, batch_size=6, verbose=0
    )
    losses = one(name, library).per_example(*map(tf.constant, (label, output, weights)))
    assert losses.shape == [6]
    np.testing.assert_allclose(np.mean(losses), expected, rtol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_logits_are_found_behind_a_softmax_and_at_a_linear_layer(library):
    loss = one("sparse_categorical_crossentropy", library)
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(CLASSES, 50.0 * LOGITS)

    @tf.function
    def computed(softmax):
        outputs = tf.matmul(50.0 * LOGITS, tf.eye(3))  # large: clipped probabilities would differ
        outputs = tf.nn.softmax(outputs) if softmax else outputs
        return loss.per_example(tf.constant(CLASSES), outputs, None)

    np.testing.assert_allclose(computed(True), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(computed(False), expected, rtol=1e-5, atol=1e-5)


def test_elements_that_a_mask_leaves_out_do_not_count():
    loss = one("mse", tf.keras)
    output = tf.constant(RNG.normal(size=(2, 3, 1)).astype("f"))
    output._keras_mask = tf.constant([[True, True, False], [True, False, False]])
    found = loss.per_example(tf.zeros([2, 3, 1]), output, None)
    squares = np.square(output.numpy())[..., 0]
    np.testing.assert_allclose(found, [squares[0, :2].mean(), squares[1, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("sparse_crossentropy", r"task.loss \(sparse_crossentropy\) is no loss of Keras"),
        (tf.keras.losses.MeanSquaredError(reduction="sum"), "reduction=sum, which depends on"),
    ],
)
def test_loss_that_is_unknown_or_depends_on_the_batch_is_refused(loss, message):
    with pytest.raises(ConfigError, match=message):
        one(loss, tf.keras)


def test_losses_by_output_have_their_weights():
    names = ["a", "b"]
    first, second = losses_of("task.loss", {"b": "mse"}, {"b": 0.5}, names, tf.keras)
    assert first is None
    assert second.weight == 0.5
    with pytest.raises(ConfigError, match=r"task.loss has c, which is no output .*: a, b"):
        losses_of("task.loss", {"c": "mse"}, None, names, tf.keras)
