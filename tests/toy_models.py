"""A user's own models, found by their dotted path."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf


def normalised(input_shape: tuple[int, ...], num_classes: int, *, l2: Annotated[float, ">= 0"] = 0.0) -> tf.keras.Model:
    """Builds a model whose batch normalisation, inside another model, is each replica's own."""
    inner = tf.keras.Sequential([tf.keras.layers.Dense(4, kernel_regularizer=tf.keras.regularizers.L2(l2))])
    inner.add(tf.keras.layers.BatchNormalization())
    return tf.keras.Sequential([tf.keras.Input(input_shape), tf.keras.layers.Flatten(), inner, tf.keras.layers.Dense(num_classes)])
