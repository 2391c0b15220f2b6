"""Examples of numbers that a model looks up in a large table, and such models."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

ROWS = 40_000
EXAMPLES = 64


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of rows [N, 3], of which many come again, and labels [N]."""
    random = np.random.RandomState(0)
    ids = random.randint(0, 30, [EXAMPLES, 3])
    ids[::4] = random.randint(0, ROWS, ids[::4].shape)
    return ids.astype(np.int32), (ids.sum(axis=1) % 2).astype(np.int64)


def model(input_shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
    """Build a classifier of the rows that are looked up."""
    layers = [tf.keras.layers.Embedding(ROWS, 8, name="embedding"), tf.keras.layers.Flatten()]
    inputs = tf.keras.Input(input_shape, dtype="int32")
    return tf.keras.Sequential([inputs, *layers, tf.keras.layers.Dense(num_classes, name="logits")])
