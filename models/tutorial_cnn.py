"""The network of TensorFlow's multi-worker tutorial for MNIST."""

from __future__ import annotations

import math
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Semantic

_SHAPE = (28, 28, 1)


def tutorial_cnn(
    input_shape: tuple[int, ...], num_classes: int, *, l2: Annotated[float, Ge(0), Semantic()] = 0.0
) -> tf.keras.Model:
    """Build one convolution and one hidden layer, 2,770,634 parameters, to logits [B, C]."""
    if math.prod(input_shape) != math.prod(_SHAPE):
        raise ValueError(
            f"tutorial_cnn takes images of 28 x 28 x 1, the dataset gives {list(input_shape)}; "
            "use dataset=mnist, dataset.image_size=[28,28] with gray images, or model=cnn"
        )
    regularizer = tf.keras.regularizers.L2(l2) if l2 else None
    inputs = tf.keras.Input(input_shape, name="features")
    x = tf.keras.layers.Reshape(_SHAPE, name="reshape")(inputs)
    x = tf.keras.layers.Conv2D(
        32, 3, activation="relu", kernel_regularizer=regularizer, name="conv"
    )(x)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    x = tf.keras.layers.Dense(
        128, activation="relu", kernel_regularizer=regularizer, name="hidden"
    )(x)
    outputs = tf.keras.layers.Dense(
        num_classes, kernel_regularizer=regularizer, dtype="float32", name="logits"
    )(x)
    return tf.keras.Model(inputs, outputs, name="tutorial_cnn")
