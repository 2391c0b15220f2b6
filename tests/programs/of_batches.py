"""Programs of either Keras: losses of a whole batch, and custom steps.

Each function returns a model; `rows` returns their data, whose last batch is not full.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import tensorflow as tf


def rows():
    """Return 24 training and 13 test examples, as `dataset=arrays` takes them."""
    generator = np.random.default_rng(7)

    def part(count):
        x = generator.normal(size=[count, 4]).astype(np.float32)
        return x, (x @ np.array([1.0, -2.0, 0.5, 0.0], np.float32) + 0.3).astype(np.float32)

    return part(24), part(13)


def _K(library: str) -> Any:
    return importlib.import_module(library)


def _net(K: Any, *, base: Any = None):
    inputs = K.Input([4])
    outputs = K.layers.Dense(1)(K.layers.Dense(5, activation="tanh")(inputs))
    return (base or K.Model)(inputs, outputs)


def masked_mean(y, p):
    y = tf.reshape(tf.cast(y, tf.float32), [-1, 1])
    mask = tf.cast(y > 0.2, tf.float32)
    return tf.reduce_sum(mask * tf.square(y - p)) / (tf.reduce_sum(mask) + 1e-3)


def net(*, library: str = "tf_keras", loss: str = "mse"):
    K = _K(library)
    model = _net(K)
    chosen = masked_mean if loss == "masked" else loss
    model.compile(K.optimizers.SGD(0.05), loss=chosen, metrics=["mae"])
    return model


def thrice(*, library: str = "tf_keras"):
    """A model that uses one layer's output three times."""
    K = _K(library)
    inputs = K.Input([4])
    hidden = K.layers.Dense(3)(inputs)
    each = [K.layers.Activation(name)(hidden) for name in ("tanh", "sigmoid", "elu")]
    model = K.Model(inputs, K.layers.Dense(1)(K.layers.Concatenate()(each)))
    model.compile(K.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    return model


def guide(*, library: str = "keras", neither: bool = False):
    """A model whose step is neither a mean nor a sum, or whose test compares the examples."""
    K = _K(library)

    class Custom(K.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                square = tf.square(tf.reshape(y, [-1, 1]) - self(x, training=True))
                loss = tf.square(tf.reduce_sum(square)) if neither else tf.reduce_mean(square)
            variables = self.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return {"loss": loss}

        def test_step(self, data):
            p = self(data[0], training=False)
            scores = tf.matmul(p, p, transpose_b=True)
            return {"loss": tf.reduce_mean(tf.reduce_logsumexp(scores, axis=1))}

    model = _net(K, base=Custom)
    model.compile(K.optimizers.SGD(0.005))
    return model


def texts(*, library: str = "tf_keras"):
    """A model of texts of any length, with a loss of all tokens of a batch."""
    K = _K(library)
    inputs = K.Input([None], dtype="int64")
    outputs = K.layers.Dense(20)(K.layers.Embedding(20, 4)(inputs))
    model = K.Model(inputs, outputs)

    def loss(y, p):
        each = tf.keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
        mask = tf.cast(y != 0, each.dtype)
        return tf.reduce_sum(mask * each) / tf.reduce_sum(mask)

    model.compile(K.optimizers.SGD(0.05), loss=loss)
    return model


def padded():
    """Return four batches of eight texts, each as long as its longest."""

    def examples():
        generator = np.random.default_rng(0)
        for index in range(32):
            x = generator.integers(1, 20, 2 + index % 5 + index // 8)
            yield x, x * 3 % 20

    spec = tf.TensorSpec([None], tf.int64)
    return tf.data.Dataset.from_generator(examples, output_signature=(spec, spec)).padded_batch(8)
