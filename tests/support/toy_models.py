"""User-defined models, found by their dotted path."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic
from trainer.logical_devices import logical_device


def classifier(
    input_shape: tuple[int, ...], num_classes: int, *layers: tf.keras.layers.Layer
) -> tf.keras.Model:
    """Build a model of flat features with some layers before the logits."""
    inputs, flatten = tf.keras.Input(input_shape), tf.keras.layers.Flatten()
    return tf.keras.Sequential([inputs, flatten, *layers, tf.keras.layers.Dense(num_classes)])


def normalized(
    input_shape: tuple[int, ...], num_classes: int, *, l2: Annotated[float, Ge(0), Semantic()] = 0.0
) -> tf.keras.Model:
    """Build a model whose batch normalization, inside another model, is each replica's own."""
    dense = tf.keras.layers.Dense(4, kernel_regularizer=tf.keras.regularizers.L2(l2))
    inner = tf.keras.Sequential([dense, tf.keras.layers.BatchNormalization()])
    return classifier(input_shape, num_classes, inner)


def tiny(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.3,
    synchronized: Annotated[bool, Semantic()] = True,
) -> tf.keras.Model:
    """Build what has statistics and draws and is traced fast, for runs that are started often."""
    normalization = tf.keras.layers.BatchNormalization(synchronized=synchronized)
    return classifier(input_shape, num_classes, normalization, tf.keras.layers.Dropout(dropout))


def smooth(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Annotated[int, Ge(1)] = 4,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.0,
    batch_norm: bool = False,
    synchronized: Annotated[bool, Semantic()] = True,
    l2: Annotated[float, Ge(0), Semantic()] = 0.0,
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
            layers.append(tf.keras.layers.BatchNormalization(synchronized=synchronized))
        layers.append(tf.keras.layers.Activation("tanh"))
        layers.append(tf.keras.layers.AveragePooling2D(padding="same"))
    layers.append(tf.keras.layers.Flatten())
    layers.append(tf.keras.layers.Dropout(dropout))
    layers.append(tf.keras.layers.Dense(num_classes, kernel_regularizer=regularizer))
    return tf.keras.Sequential(layers)


class SeesNumbers(tf.keras.layers.Layer):
    """Notes whether it was called with numbers, as a breakpoint in it would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.seen.append(hasattr(inputs, "numpy"))
        return inputs


def watched(input_shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
    """Build a softmax regression with a layer that sees numbers in eager execution."""
    return classifier(input_shape, num_classes, SeesNumbers())


class Finite(tf.keras.layers.Layer):
    """Replaces what is not finite by zero, as some kernels do."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))


def finite(input_shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
    """Build a model whose outputs are finite for any features."""
    return classifier(input_shape, num_classes, Finite())


def everything(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Annotated[int, Ge(1)] = 4,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.3,
    batch_norm: bool = True,
    synchronized: Annotated[bool, Semantic()] = False,
    l2: Annotated[float, Ge(0), Semantic()] = 1e-3,
) -> tf.keras.Model:
    """Build a small model with all that depends on how a batch is cut: noise and statistics.

    The options are those of `cnn`, but each replica or shard normalizes by itself whatever
    `synchronized` says: it is true in cnn's file.
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


def two_layers(
    input_shape: tuple[int, ...], num_classes: int, *, hidden: int = 6, placed: bool = False
) -> tf.keras.Model:
    """Build a net of two dense layers, `first` and `second`."""
    inputs = tf.keras.Input(input_shape)
    x = tf.keras.layers.Flatten(name="flatten")(inputs)
    x = tf.keras.layers.Dense(hidden, "tanh", name="first")(x)
    with logical_device(1) if placed else nullcontext():
        outputs = tf.keras.layers.Dense(num_classes, name="second")(x)
    return tf.keras.Model(inputs, outputs)


class Halves(tf.keras.layers.Layer):
    """Computes a sine on one logical device, and a cosine on another."""

    def __init__(self, other: int) -> None:
        super().__init__(name="halves")
        self._other = other

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Return both, side by side."""
        with logical_device(0):
            sine = tf.sin(x, name="sine")
        with logical_device(self._other):
            cosine = tf.cos(x, name="cosine")
        return tf.concat([sine, cosine], axis=-1)


def halves(input_shape: tuple[int, ...], num_classes: int, *, other: int = 1) -> tf.keras.Model:
    """Build a net with a layer that divides its work between logical devices by itself."""
    inputs = tf.keras.Input(input_shape)
    x = tf.keras.layers.Dense(6, name="first")(tf.keras.layers.Flatten()(inputs))
    x = Halves(other)(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes, name="second")(x))


def blocks(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Annotated[int, Ge(1)] = 4,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.3,
    batch_norm: bool = True,
    synchronized: Annotated[bool, Semantic()] = False,
    l2: Annotated[float, Ge(0), Semantic()] = 1e-3,
) -> tf.keras.Model:
    """Build a net of layers with names: `stem`, `body` and `head`, and a normalization of two.

    The options are those of `cnn`.
    """
    layers = tf.keras.layers
    kernel = {"kernel_regularizer": tf.keras.regularizers.L2(l2)}
    inputs = tf.keras.Input(input_shape)
    x = layers.Conv2D(width, 3, padding="same", name="stem", **kernel)(inputs)
    if batch_norm:
        x = layers.BatchNormalization(momentum=0.9, synchronized=synchronized, name="stem_norm")(x)
    x = layers.Flatten()(layers.AveragePooling2D()(layers.Activation("tanh")(x)))
    x = layers.Dense(4 * width, name="body", **kernel)(x)
    if batch_norm:
        x = layers.BatchNormalization(momentum=0.9, name="body_norm")(x)
    x = layers.Dropout(dropout)(layers.Activation("tanh")(x))
    return tf.keras.Model(inputs, layers.Dense(num_classes, name="head")(x))
