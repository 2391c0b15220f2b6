"""After keras.io's "CutMix data augmentation": `tf.data` pastes a part of one image into another.

Changed for Steadfast: the model and the data are made by functions, and `model.fit(...)` became
`conf/experiment/cutmix.yaml`. The mapped function stays, with the draws of `tf.random`.
"""

import keras
import tensorflow as tf
from data import digits
from keras import layers

SIZE = 8
BATCH = 64


def cut_mix(first, second):
    """Paste a random box of the second image into the first; mix the labels by their areas."""
    (image, label), (other, other_label) = first, second
    a, b = tf.random.gamma([], 0.2), tf.random.gamma([], 0.2)
    side = tf.sqrt(1.0 - a / (a + b)) * SIZE
    center = tf.random.uniform([2], 0.0, SIZE)
    low = tf.round(tf.clip_by_value(center - side / 2, 0.0, SIZE))
    high = tf.round(tf.clip_by_value(center + side / 2, 0.0, SIZE))
    at = tf.range(SIZE, dtype=tf.float32)
    rows = (at >= low[0]) & (at < high[0])
    columns = (at >= low[1]) & (at < high[1])
    box = tf.cast(rows[:, None, None] & columns[None, :, None], tf.float32)
    share = tf.reduce_mean(box)
    return (
        image * (1.0 - box) + other * box,
        label * (1.0 - share) + other_label * share,
    )


def train():
    """Return batches of mixed images and of the fractions of their classes."""
    (images, labels), _ = digits()
    pairs = tf.data.Dataset.from_tensor_slices((images, tf.one_hot(labels, 10)))
    one, two = (pairs.shuffle(len(images), seed=seed) for seed in (1, 2))
    return tf.data.Dataset.zip((one, two)).map(cut_mix).batch(BATCH, drop_remainder=True)


def test():
    """Return batches of images and of their classes, one-hot."""
    _, (images, labels) = digits()
    return tf.data.Dataset.from_tensor_slices((images, tf.one_hot(labels, 10))).batch(BATCH)


def residual(x, filters):
    """Return what two convolutions and a shortcut make of x."""
    y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    y = layers.Activation("relu")(layers.BatchNormalization(momentum=0.9)(y))
    y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
    y = layers.BatchNormalization(momentum=0.9)(y)
    return layers.Activation("relu")(layers.add([layers.Conv2D(filters, 1)(x), y]))


def model():
    """Return the compiled residual network."""
    inputs = keras.Input([SIZE, SIZE, 1])
    x = residual(inputs, 16)
    x = layers.MaxPooling2D(2)(x)
    x = residual(x, 32)
    x = layers.GlobalAveragePooling2D()(x)
    network = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    network.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])
    return network
