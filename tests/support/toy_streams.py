"""User-defined streams: random wherever they have no seed."""

from __future__ import annotations

import tensorflow as tf

from trainer.datasets.digits import digits


def train(*, buffer: int = 100) -> tf.data.Dataset:
    """Return the training digits, shuffled, with noise."""
    batch = digits().train.fetch(tf.range(1437))
    pairs = tf.data.Dataset.from_tensor_slices((batch["features"], batch["label"])).shuffle(buffer)
    return pairs.map(lambda x, label: (tf.cast(x, tf.float32) + tf.random.uniform([]), label))


def test() -> tf.data.Dataset:
    """Return 36 test digits."""
    batch = digits().test.fetch(tf.range(36))
    return tf.data.Dataset.from_tensor_slices((batch["features"], batch["label"]))


test.__test__ = False  # no test of pytest's
