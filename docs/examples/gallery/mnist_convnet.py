"""After keras.io's "Simple MNIST convnet": a compiled convolutional network that ends in a softmax.

Changed for Steadfast, of the lines of a script: the model is made by a function, and
`model.fit(...)` became `conf/experiment/mnist_convnet.yaml`. The model and its `compile` stay.
"""

import keras
from data import digits as data  # noqa: F401  (named in the recipe)
from keras import layers


def model():
    """Return the compiled network."""
    network = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 2, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    network.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return network
