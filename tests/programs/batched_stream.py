"""Digits as tf.data pipelines for `model.fit`, which takes batches and more than labels."""

import tensorflow as tf

from trainer.datasets.digits import digits


def _pairs(count, label=lambda y: y):
    batch = digits().train.fetch(tf.range(count))
    features = tf.cast(batch["features"], tf.float32)
    return tf.data.Dataset.from_tensor_slices((features, label(batch["label"])))


def single():
    """Return single examples."""
    return _pairs(64)


def batched():
    """Return batches, the last of which is smaller."""
    return _pairs(70).batch(32).prefetch(tf.data.AUTOTUNE)


def columns():
    """Return features by name."""
    return _pairs(64).map(lambda x, y: ({"pixels": x, "mean": tf.reduce_mean(x)}, y))


def weighted():
    """Return sample weights too."""
    return _pairs(64).map(lambda x, y: (x, y, 1.0))


def two_labels():
    """Return two labels."""
    return _pairs(64).map(lambda x, y: (x, (y, y % 2)))


def one_hot():
    """Return labels as `to_categorical` makes them."""
    return _pairs(64, lambda y: tf.one_hot(y, 10))


def numbers():
    """Return a number to predict."""
    return _pairs(64, lambda y: tf.cast(y, tf.float32))
