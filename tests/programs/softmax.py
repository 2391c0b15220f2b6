"""Simple convnets that end in probabilities, as nearly every example does."""

import keras
import tensorflow as tf


def convnet(input_shape, num_classes):
    """Keras 3, sequential: the last layer has the activation."""
    return keras.Sequential(
        [
            keras.Input(shape=input_shape),
            keras.layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(num_classes, activation="softmax"),
        ]
    )


def sigmoid(input_shape, num_classes):
    """One number for two classes."""
    return keras.Sequential(
        [
            keras.Input(shape=input_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def two_heads(input_shape, num_classes):
    inputs = keras.Input(shape=input_shape)
    x = keras.layers.Flatten()(inputs)
    heads = [keras.layers.Dense(num_classes)(x), keras.layers.Dense(1)(x)]
    return keras.Model(inputs, heads)


class Forgetful(tf.keras.Model):
    """A call without `return`."""

    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(10)

    def call(self, x):
        self.dense(x)


def forgetful(input_shape, num_classes):
    return Forgetful()


def nothing(input_shape, num_classes):
    convnet(input_shape, num_classes)
