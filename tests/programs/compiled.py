"""Models that are compiled for `model.fit`."""

import keras


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
