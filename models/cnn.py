"""A small convolutional network for small images."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic
from trainer.models.layers.inputs import require_images


def cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Annotated[int, Ge(1)] = 32,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.25,
    batch_norm: bool = False,
    synchronized: Annotated[bool, Semantic()] = True,
    l2: Annotated[float, Ge(0), Semantic()] = 0.0,
) -> tf.keras.Model:
    """Build two blocks of two convolutions and pooling, and a hidden layer, to logits [B, C]."""
    require_images("cnn", input_shape)
    regularizer = tf.keras.regularizers.L2(l2) if l2 else None
    inputs = x = tf.keras.Input(input_shape, name="features")
    for block, filters in enumerate((width, 2 * width)):
        for number in range(2):
            name = f"block{block}_conv{number}"
            x = tf.keras.layers.Conv2D(
                filters,
                3,
                padding="same",
                use_bias=not batch_norm,
                kernel_regularizer=regularizer,
                name=name,
            )(x)
            if batch_norm:
                x = tf.keras.layers.BatchNormalization(
                    synchronized=synchronized, name=f"{name}_norm"
                )(x)
            x = tf.keras.layers.ReLU(name=f"{name}_relu")(x)
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
