"""After keras.io's "Transfer learning & fine-tuning": a new head on a base, then both slowly.

The base learns the digits 0 to 5; the head is for 6 to 9, of which there are 60 images. Changed for
Steadfast: the models and data are made by functions, and `fit` (three times) became
`conf/experiment/transfer_base.yaml`, `transfer_head.yaml` and `transfer_fine_tune.yaml`, of which
each begins with the weights of the one before (`init_from`). The models stay; the layers that are
shared have names, by which their weights are found.
"""

import keras
from data import digits
from keras import layers


def base():
    """Return a network from images [B, 8, 8, 1] to features [B, 2, 2, 64]."""
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.Activation("relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.Activation("relu"),
            layers.MaxPooling2D(2),
        ],
        name="base",
    )


def classifier(network, classes, rate):
    """Return the compiled classifier on a base."""
    inputs = keras.Input([8, 8, 1])
    x = network(inputs)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.2)(x)
    outputs = layers.Dense(classes, name=f"head_{classes}")(x)
    whole = keras.Model(inputs, outputs)
    whole.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return whole


def base_model():
    """Return the base with its own head, to be trained from scratch."""
    return classifier(base(), 6, rate=3e-3)


def head_model():
    """Return a new head on the base, which is frozen."""
    network = base()
    network.trainable = False
    return classifier(network, 4, rate=1e-2)


def whole_model():
    """Return the same, where all is trained but the normalization, which keeps its statistics.

    `base(inputs, training=False)` would not: Keras 3 passes on the `training` of the whole.
    """
    network = base()
    for layer in network.layers:
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    return classifier(network, 4, rate=3e-4)


def base_data():
    """Return images of 0 to 5."""
    return tuple((x[y < 6], y[y < 6]) for x, y in digits())


def new_data():
    """Return images of 6 to 9, few of them to train."""
    (x, y), test = ((x[y >= 6], y[y >= 6] - 6) for x, y in digits())
    return (x[:60], y[:60]), test
