"""A layer that reads a variable where Keras does not look for it."""

from types import SimpleNamespace

import tensorflow as tf


class Scale(tf.keras.layers.Layer):
    """Multiply by a number that is to be learned."""

    def build(self, input_shape):
        """Make the variable, held by an object that is no layer."""
        self.held = SimpleNamespace(factor=tf.Variable(1.0, name="factor"))

    def call(self, inputs):
        """Scale the inputs."""
        return inputs * self.held.factor


def scaled(input_shape, num_classes):
    """Build a linear classifier of scaled inputs."""
    flatten = tf.keras.layers.Flatten(input_shape=input_shape)
    return tf.keras.Sequential([flatten, Scale(), tf.keras.layers.Dense(num_classes)])


def multiplied(input_shape, num_classes):
    """Build the same with an operation instead of a layer, which Keras makes one of."""
    inputs = tf.keras.Input(input_shape)
    scaled = tf.keras.layers.Flatten()(inputs) * tf.Variable(1.0, name="factor")
    return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes)(scaled))
