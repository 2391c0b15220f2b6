"""After keras.io's "Image segmentation with a U-Net-like architecture": a class for each pixel.

Changed for Steadfast: the model is made by a function, and `model.fit(...)` with its
`ModelCheckpoint` became `conf/experiment/segmentation.yaml`. The model and its `compile` stay.
"""

import keras
from data import blobs
from keras import layers

SIZE = 32


def block(x, filters):
    """Return what two normalized convolutions make of x."""
    for _ in range(2):
        x = layers.Activation("relu")(x)
        x = layers.SeparableConv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization(momentum=0.9)(x)
    return x


def model():
    """Return the compiled U-Net."""
    inputs = keras.Input([SIZE, SIZE, 1])
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    x = layers.BatchNormalization(momentum=0.9)(x)
    skips = []
    for filters in (16, 32):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D(2)(x)
    x = block(x, 64)
    for filters in (32, 16):
        x = layers.UpSampling2D(2)(x)
        x = layers.concatenate([x, skips.pop()])
        x = block(x, filters)
    outputs = layers.Conv2D(3, 3, activation="softmax", padding="same")(x)
    network = keras.Model(inputs, outputs)
    network.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return network


def data():
    """Return images and their masks: to train, and to test."""
    return blobs(512, seed=0), blobs(128, seed=1)
