"""Every shipped model in bfloat16, and compiled by XLA: the update of float32 but for rounding."""

import os

import numpy as np
import pytest
import tensorflow as tf
import yaml

from tests.support.choices import CONF, listed
from tests.support.marks import first_only
from trainer.config.instantiate import instantiate

IMAGES = (28, 28, 1)
TINY = {
    "cnn": {"width": 4, "dropout": 0.0},
    "keras_application": {"name": "MobileNetV3Small"},
    "mobilenet": {"alpha": 0.35},
    "resnet": {"depth": 8},
    "text_cnn": {"width": 8, "dropout": 0.0},
    "transformer": {"width": 8, "heads": 2, "hidden": 16, "dropout": 0.0},
    "transformer_encoder": {"width": 8, "heads": 2, "hidden": 16, "dropout": 0.0},
    "unet": {"width": 4},
    "vit": {"width": 8, "heads": 2, "layers": 2},
}
"""Options of models: without dropout, of which XLA draws other numbers."""

DEEP = ("keras_application", "mobilenet", "resnet50")
"""Models that are compared with moving statistics.

Untrained and of a small batch, each of their normalizations subtracts nearly all of a gradient, and
what is left of it after fifty is rounding.
"""


def model_of(choice, precision):
    """Build a model, with the same weights for any precision."""
    node = yaml.safe_load((CONF / "model" / f"{choice}.yaml").read_text())
    options = {**node, **TINY.get(choice, {})}
    tf.keras.utils.set_random_seed(0)
    tf.keras.mixed_precision.set_global_policy(precision)
    try:
        return instantiate(options, "model", (12,) if "vocabulary" in node else IMAGES, 10)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def gradient(model, *, training=True, jit=False):
    """Return the loss of a batch, and its gradient as one vector."""
    random = np.random.RandomState(0)
    shape = (16, *model.input_shape[1:])
    is_text = len(shape) == 2
    values = random.randint(0, 200, shape) if is_text else random.uniform(size=shape)
    features = tf.constant(values, tf.int64 if is_text else tf.float32)
    labels = tf.constant(random.randint(0, 10, (16, *model.output_shape[1:-1])))

    assert {variable.dtype for variable in model.variables} == {tf.float32}

    def compute():
        with tf.GradientTape() as tape:
            logits = model(features, training=training)
            assert logits.dtype == tf.float32
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        return loss, [tf.reshape(tf.convert_to_tensor(part), [-1]) for part in gradients]

    loss, parts = tf.function(compute, jit_compile=True)() if jit else compute()
    return float(loss), np.concatenate([part.numpy() for part in parts]).astype(np.float64)


def compare(choice, *, precision="float32", jit=False):
    """Return how far off a loss is, and the cosine of the angle between the gradients."""
    training = choice not in DEEP
    loss, exact = gradient(model_of(choice, "float32"), training=training)
    other, rounded = gradient(model_of(choice, precision), training=training, jit=jit)
    cosine = exact @ rounded / np.linalg.norm(exact) / np.linalg.norm(rounded)
    return abs(other - loss) / loss, cosine


MODELS = [
    name
    for name in listed("model").split(", ")
    if "???" not in (CONF / "model" / f"{name}.yaml").read_text()  # which read a file of models
]


# On processors with 16-bit kernels, TensorFlow may ask oneDNN for one that is hidden, and crash.
@pytest.mark.slow
@pytest.mark.skipif("ONEDNN_MAX_CPU_ISA" in os.environ, reason="16-bit kernels may be hidden")
@pytest.mark.parametrize("choice", MODELS)
def test_bfloat16_updates_in_the_direction_of_float32(choice):
    """It has 8 bits, so a layer rounds by 2**-9, and fifty of them by 2% in sum, or more."""
    error, cosine = compare(choice, precision="mixed_bfloat16")
    assert error <= 0.05
    assert cosine >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("choice", first_only(name for name in MODELS if name not in DEEP))
def test_xla_makes_the_update_of_tensorflow(choice):
    """XLA adds up in another order. Measured: 1e-6."""
    error, cosine = compare(choice, jit=True)
    assert error <= 1e-4
    assert cosine >= 1 - 1e-4
