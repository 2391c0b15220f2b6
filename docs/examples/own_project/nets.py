"""Your own model: a function that returns a Keras model. Its keyword arguments are `model.*`."""

from typing import Annotated, Literal

import tensorflow as tf

from trainer.annotations import Ge


def listener(
    input_shape,
    num_classes,
    *,
    filters: Annotated[int, Ge(1)] = 8,
    pooling: Literal["max", "mean"] = "max",
):
    """Build a small network over a signal: one convolution, pooled over time.

    Args:
        input_shape: (samples, 1).
        num_classes: how many logits.
        filters: how many patterns it listens for.
        pooling: whether a pattern must occur once (max) or often (mean).

    Returns:
        A model from features [B, samples, 1] to logits [B, num_classes].
    """
    layers = tf.keras.layers
    pool = layers.GlobalMaxPooling1D() if pooling == "max" else layers.GlobalAveragePooling1D()
    return tf.keras.Sequential(
        [
            layers.Conv1D(filters, 9, activation="relu", input_shape=input_shape),
            pool,
            layers.Dense(num_classes, dtype="float32"),
        ]
    )
