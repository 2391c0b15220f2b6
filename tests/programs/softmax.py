"""Simple convnets that end in probabilities, as nearly every example does."""

import keras


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
