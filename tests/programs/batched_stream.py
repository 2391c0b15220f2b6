"""Digits as tf.data pipelines for `model.fit`, which takes batches and more than labels."""

import tensorflow as tf

from trainer.datasets.digits import digits


def _pairs(count, label=lambda y: y):
    batch = digits().train.fetch(tf.range(count))
    features = tf.cast(batch["features"], tf.float32)
    return tf.data.Dataset.from_tensor_slices((features, label(batch["label"])))


def batched():
    """Return batches, the last of which is smaller."""
    return _pairs(70).batch(32).prefetch(tf.data.AUTOTUNE)


def weighted():
    """Return sample weights too."""
    return _pairs(64).map(lambda x, y: (x, y, 1.0))


def one_hot():
    """Return labels as `to_categorical` makes them."""
    return _pairs(64, lambda y: tf.one_hot(y, 10))


def numbers():
    """Return a number to predict."""
    return _pairs(64, lambda y: tf.cast(y, tf.float32))
