"""A model that reads a variable where Keras does not look for it."""

import tensorflow as tf


def multiplied(input_shape, num_classes):
    """Build a classifier that multiplies by a variable, of which Keras makes no layer."""
    inputs = tf.keras.Input(input_shape)
    scaled = tf.keras.layers.Flatten()(inputs) * tf.Variable(1.0, name="factor")
    return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes)(scaled))
