"""A user's own models, found by their dotted path."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf


def normalised(
    input_shape: tuple[int, ...], num_classes: int, *, l2: Annotated[float, ">= 0"] = 0.0
) -> tf.keras.Model:
    """Build a model whose batch normalisation, inside another model, is each replica's own."""
    inner = tf.keras.Sequential(
        [tf.keras.layers.Dense(4, kernel_regularizer=tf.keras.regularizers.L2(l2))]
    )
    inner.add(tf.keras.layers.BatchNormalization())
    return tf.keras.Sequential(
        [
            tf.keras.Input(input_shape),
            tf.keras.layers.Flatten(),
            inner,
            tf.keras.layers.Dense(num_classes),
        ]
    )


def smooth(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Annotated[int, ">= 1"] = 4,
    dropout: Annotated[float, ">= 0, < 1"] = 0.0,
    batch_norm: bool = False,
    l2: Annotated[float, ">= 0"] = 0.0,
) -> tf.keras.Model:
    """Build a small convolutional network whose gradient is continuous.

    A rounding error of the forward pass stays one: with ReLU or max pooling it can select another
    branch, and then the gradient is another one altogether. The options are those of `cnn`.
    """
    regularizer = tf.keras.regularizers.L2(l2) if l2 else None
    layers = [tf.keras.Input(input_shape)]
    for filters in (width, 2 * width):
        layers.append(
            tf.keras.layers.Conv2D(
                filters, 3, padding="same", use_bias=not batch_norm, kernel_regularizer=regularizer
            )
        )
        if batch_norm:
            layers.append(tf.keras.layers.BatchNormalization(synchronized=True))
        layers.append(tf.keras.layers.Activation("tanh"))
        layers.append(tf.keras.layers.AveragePooling2D(padding="same"))
    layers.append(tf.keras.layers.Flatten())
    layers.append(tf.keras.layers.Dropout(dropout))
    layers.append(tf.keras.layers.Dense(num_classes, kernel_regularizer=regularizer))
    return tf.keras.Sequential(layers)


class Finite(tf.keras.layers.Layer):
    """Replaces what is not finite by zero, as some kernels do."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))


def finite(input_shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
    """Build a model whose outputs are finite whatever its features are."""
    return tf.keras.Sequential(
        [
            tf.keras.Input(input_shape),
            Finite(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(num_classes),
        ]
    )


def everything(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Annotated[int, ">= 1"] = 4,
    dropout: Annotated[float, ">= 0, < 1"] = 0.3,
    batch_norm: bool = True,
    l2: Annotated[float, ">= 0"] = 1e-3,
) -> tf.keras.Model:
    """Build a small model with all that depends on how a batch is cut: noise and statistics.

    The options are those of `cnn`.
    """
    layers = tf.keras.layers
    norm = layers.BatchNormalization if batch_norm else layers.Activation
    kernel = {"kernel_regularizer": tf.keras.regularizers.L2(l2)}
    option = {"momentum": 0.9} if batch_norm else {"activation": "linear"}
    inputs = tf.keras.Input(input_shape)
    x = layers.RandomTranslation(0.1, 0.1)(inputs)
    x = norm(**option)(layers.Conv2D(width, 3, padding="same", **kernel)(x))
    x = layers.SpatialDropout2D(0.1)(layers.ReLU()(x))
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    x = norm(**option)(layers.Dense(4 * width + 2, **kernel)(x))
    x = layers.Dropout(dropout)(layers.ReLU()(layers.GaussianNoise(0.1)(x)))
    return tf.keras.Model(inputs, layers.Dense(num_classes)(x))
