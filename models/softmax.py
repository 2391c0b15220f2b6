"""Softmax regression: one linear layer, the baseline that every other model must beat."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Semantic


def softmax(
    input_shape: tuple[int, ...], num_classes: int, *, l2: Annotated[float, Ge(0), Semantic()] = 0.0
) -> tf.keras.Model:
    """Build softmax regression, to logits [B, num_classes] float32."""
    regularizer = tf.keras.regularizers.L2(l2) if l2 else None
    inputs = tf.keras.Input(input_shape, name="features")
    x = tf.keras.layers.Flatten(name="flatten")(inputs)
    outputs = tf.keras.layers.Dense(
        num_classes, kernel_regularizer=regularizer, dtype="float32", name="logits"
    )(x)
    return tf.keras.Model(inputs, outputs, name="softmax")
