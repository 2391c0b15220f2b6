"""A compiled model and its data, as a script has them."""

import keras
import numpy as np


def examples():
    features = np.random.default_rng(0).normal(size=[200, 8]).astype("float32")
    return features, features[:, :3].argmax(-1)


def build():
    model = keras.Sequential(
        [keras.Input([8]), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")]
    )
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model
