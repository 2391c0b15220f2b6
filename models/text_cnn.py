"""A convolutional network for texts (Kim 2014)."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic
from trainer.models.layers.inputs import require_tokens


def text_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    vocabulary: Annotated[int, Ge(1)] = 257,
    width: Annotated[int, Ge(1)] = 64,
    kernels: list[Annotated[int, Ge(1)]] = [3, 4, 5],  # noqa: B006 - never changed
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.5,
) -> tf.keras.Model:
    """Build an embedding, convolutions of several lengths, and their maxima, to logits [B, C]."""
    require_tokens("text_cnn", input_shape, "text")
    inputs = tf.keras.Input(input_shape, name="features", dtype="int32")
    embedded = tf.keras.layers.Embedding(vocabulary, width, name="embedding")(inputs)
    maxima = []
    for number, kernel in enumerate(kernels):
        x = tf.keras.layers.Conv1D(
            width, kernel, padding="same", activation="relu", name=f"conv{number}"
        )(embedded)
        maxima.append(tf.keras.layers.GlobalMaxPooling1D(name=f"max{number}")(x))
    x = tf.keras.layers.Concatenate(name="maxima")(maxima) if len(maxima) > 1 else maxima[0]
    x = tf.keras.layers.Dropout(dropout, name="dropout")(x)
    outputs = tf.keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return tf.keras.Model(inputs, outputs, name="text_cnn")
