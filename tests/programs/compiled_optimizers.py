"""A classifier compiled with any optimizer of either Keras, or with one of the user's."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf


class Halving(keras.optimizers.Optimizer):
    """One of the user's, of Keras 3."""

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.seen = self.add_optimizer_variables(variables, "seen")

    def update_step(self, gradient, variable, learning_rate):
        seen = self.seen[self._get_variable_index(variable)]
        self.assign(seen, 0.5 * seen + gradient)
        self.assign_sub(variable, learning_rate * seen)


class OldHalving(tf.keras.optimizers.Optimizer):
    """The same of tf_keras, without `get_config`."""

    def __init__(self, learning_rate):
        super().__init__("OldHalving")
        self._learning_rate = self._build_learning_rate(learning_rate)

    def build(self, variables):
        super().build(variables)
        if getattr(self, "_built", False):
            return
        self._built = True
        self.seen = [self.add_variable_from_reference(v, "seen") for v in variables]

    def update_step(self, gradient, variable):
        seen = self.seen[self._index_dict[self._var_key(variable)]]
        seen.assign(0.5 * seen + gradient)
        variable.assign_sub(self.learning_rate * seen)


OWN = {"Halving": Halving, "OldHalving": OldHalving}


class Reading(keras.callbacks.Callback):
    """Notes what it reads of the optimizer."""

    seen: ClassVar[list[tuple[float, int]]] = []

    def on_epoch_end(self, epoch, logs=None):
        optimizer = self.model.optimizer
        self.seen.append((float(optimizer.learning_rate), int(optimizer.iterations)))


def examples():
    """Return 32 examples, which are one batch, for training and test."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[32, 5]).astype(np.float32)
    part = x, rng.integers(0, 3, [32])
    return part, part


def net(
    input_shape,
    num_classes,
    *,
    library: str = "keras",
    optimizer: str = "Adam",
    options: dict[str, Any] | None = None,
    updates: int = 0,
    decays: bool = False,
):
    """Build it."""
    K: Any = importlib.import_module(library)

    class Stepping(K.Sequential):
        def train_step(self, data):
            images, labels = data
            for _ in range(updates):
                rate = tf.cast(self.optimizer.learning_rate, tf.float32)
                count = tf.cast(self.optimizer.iterations, tf.float32)
                with tf.GradientTape() as tape:
                    predicted = self(images, training=True)
                    losses = K.losses.sparse_categorical_crossentropy(labels, predicted)
                    loss = tf.reduce_mean(losses)
                gradients = tape.gradient(loss, self.trainable_variables)
                pairs = zip(gradients, self.trainable_variables, strict=True)
                self.optimizer.apply_gradients(pairs)
            return {"loss": loss, "count": count, "rate": rate}

    layers = [
        K.Input(input_shape), K.layers.Flatten(), K.layers.Dense(8, activation="relu"),
        K.layers.Dense(num_classes, activation="softmax"),
    ]  # fmt: skip
    model = (Stepping if updates else K.Sequential)(layers)
    kind = OWN.get(optimizer) or getattr(K.optimizers, optimizer)
    rate = 0.01
    if decays:
        rate = K.optimizers.schedules.ExponentialDecay(rate, 2, 0.5, staircase=True)
    model.compile(
        kind(learning_rate=rate, **(options or {})),
        "sparse_categorical_crossentropy",
        metrics=None if updates else ["accuracy"],
    )
    return model
