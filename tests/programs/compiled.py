"""Models that are compiled for `model.fit`."""

import keras
import tensorflow as tf


def convnet(input_shape, num_classes):
    """Keras 3."""
    model = keras.Sequential(
        [keras.Input(shape=input_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def legacy_convnet(input_shape, num_classes):
    """tf_keras."""
    model = tf.keras.Sequential(
        [tf.keras.layers.Flatten(input_shape=input_shape), tf.keras.layers.Dense(num_classes)]
    )
    model.compile(optimizer="rmsprop", loss="mse", metrics=["mae"])
    return model
