"""A multilayer perceptron: for vectors, such as the rows of a table, and observations."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: list[Annotated[int, Ge(1)]] = [64, 64],  # noqa: B006 - never changed
    activation: str = "relu",
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.0,
    l2: Annotated[float, Ge(0), Semantic()] = 0.0,
) -> tf.keras.Model:
    """Build fully connected layers, to outputs [B, num_classes] float32 such as logits."""
    regularizer = tf.keras.regularizers.L2(l2) if l2 else None
    inputs = tf.keras.Input(input_shape, name="features")
    x = tf.keras.layers.Flatten(name="flatten")(inputs)
    for number, width in enumerate(hidden):
        x = tf.keras.layers.Dense(
            width, activation=activation, kernel_regularizer=regularizer, name=f"hidden{number}"
        )(x)
        if dropout:
            x = tf.keras.layers.Dropout(dropout, name=f"hidden{number}_dropout")(x)
    outputs = tf.keras.layers.Dense(
        num_classes, kernel_regularizer=regularizer, dtype="float32", name="outputs"
    )(x)
    return tf.keras.Model(inputs, outputs, name="mlp")
