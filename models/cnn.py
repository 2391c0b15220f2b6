"""A small convolutional network for small images."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf


def cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Annotated[int, ">= 1"] = 32,
    dropout: Annotated[float, ">= 0, < 1"] = 0.25,
    batch_norm: bool = False,
    l2: Annotated[float, ">= 0"] = 0.0,
) -> tf.keras.Model:
    """Build a convolutional network: two blocks of two convolutions and pooling, one hidden layer.

    Args:
        input_shape: (height, width, channels).
        num_classes: how many logits.
        width: channels of the first two convolutions; the next two have twice as many, the hidden
            layer four times as many.
        dropout: the share of activations dropped before and after the hidden layer.
        batch_norm: whether each convolution is followed by batch normalisation over the whole
            global batch.
        l2: weight of the sum of squared kernels in the loss.

    Returns:
        A model from features [B, height, width, channels] float32 to logits [B, num_classes]
        float32.

    Raises:
        ValueError: the features are not images.
    """
    if len(input_shape) != 3:
        raise ValueError(
            f"cnn takes images [height, width, channels], the dataset gives {list(input_shape)}; "
            "use model=softmax"
        )
    regularizer = tf.keras.regularizers.L2(l2) if l2 else None
    inputs = x = tf.keras.Input(input_shape, name="features")
    for block, filters in enumerate((width, 2 * width)):
        for number in range(2):
            x = _convolution(x, filters, batch_norm, regularizer, f"block{block}_conv{number}")
        # Padded, so that an image of one pixel still has one after pooling.
        x = tf.keras.layers.MaxPooling2D(padding="same", name=f"block{block}_pool")(x)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    x = tf.keras.layers.Dropout(dropout, name="flatten_dropout")(x)
    x = tf.keras.layers.Dense(
        4 * width, activation="relu", kernel_regularizer=regularizer, name="hidden"
    )(x)
    x = tf.keras.layers.Dropout(dropout, name="hidden_dropout")(x)
    outputs = tf.keras.layers.Dense(
        num_classes, kernel_regularizer=regularizer, dtype="float32", name="logits"
    )(x)
    return tf.keras.Model(inputs, outputs, name="cnn")


def _convolution(
    x: tf.Tensor,
    filters: int,
    batch_norm: bool,
    regularizer: tf.keras.regularizers.L2 | None,
    name: str,
) -> tf.Tensor:
    x = tf.keras.layers.Conv2D(
        filters,
        3,
        padding="same",
        use_bias=not batch_norm,
        kernel_regularizer=regularizer,
        name=name,
    )(x)
    if batch_norm:
        # Synchronised: with statistics of each replica's share alone, the update would depend on
        # the number of replicas.
        x = tf.keras.layers.BatchNormalization(synchronized=True, name=f"{name}_norm")(x)
    return tf.keras.layers.ReLU(name=f"{name}_relu")(x)
