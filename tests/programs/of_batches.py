"""Programs of either Keras: losses and metrics of a whole batch, and custom steps.

Each function returns a model; `rows` returns their data, whose last batch is not full.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import tensorflow as tf

KINDS = ("class", "number", "text")


def rows(kind: str = "number", weighted: bool = False):
    """Return 24 training and 13 test examples, as `dataset=arrays` takes them."""
    generator = np.random.default_rng(7)

    def part(count):
        x = generator.normal(size=[count, 4]).astype(np.float32)
        y = (x @ np.array([1.0, -2.0, 0.5, 0.0], np.float32) + 0.3).astype(np.float32)
        if kind == "class":
            y = (y > 0.0).astype(np.float32)
        weights = (generator.uniform(0.5, 3.0, size=count).astype(np.float32),) if weighted else ()
        return x, y, *weights

    return part(24), part(13)


def _K(library: str) -> Any:
    return importlib.import_module(library)


def _net(K: Any, *, flat: bool = False, activation: str | None = None, base: Any = None):
    inputs = K.Input([4])
    hidden = K.layers.Dense(5, activation="tanh")(inputs)
    outputs = K.layers.Dense(1, activation=activation)(hidden)
    if flat:
        outputs = K.layers.Reshape([])(outputs)
    return (base or K.Model)(inputs, outputs)


def mean_of_batch(y, p):
    return tf.reduce_mean(tf.square(tf.reshape(tf.cast(y, tf.float32), [-1, 1]) - p))


def sum_of_batch(y, p):
    return tf.reduce_sum(tf.square(tf.reshape(tf.cast(y, tf.float32), [-1, 1]) - p)) / 8.0


def dice(y, p):
    y, p = tf.reshape(tf.cast(y, tf.float32), [-1]), tf.reshape(p, [-1])
    return 1.0 - (2.0 * tf.reduce_sum(y * p) + 1.0) / (tf.reduce_sum(y + p) + 1.0)


def masked_mean(y, p):
    y = tf.reshape(tf.cast(y, tf.float32), [-1, 1])
    mask = tf.cast(y > 0.2, tf.float32)
    return tf.reduce_sum(mask * tf.square(y - p)) / (tf.reduce_sum(mask) + 1e-3)


def rmse(y, p):
    return tf.sqrt(mean_of_batch(y, p))


LOSSES = {"mean": mean_of_batch, "sum": sum_of_batch, "dice": dice, "masked": masked_mean,
          "mse": "mse"}  # fmt: skip


def net(*, library: str = "tf_keras", loss: str = "mse", flat: bool = False, metric: bool = False):
    K = _K(library)
    model = _net(K, flat=flat, activation="sigmoid" if loss == "dice" else None)
    metrics = [rmse, "mae"] if metric else ["mae"]
    model.compile(K.optimizers.SGD(0.05), loss=LOSSES[loss], metrics=metrics)
    return model


def largest(*, library: str = "tf_keras"):
    """A model with a metric whose state is no sum."""
    K = _K(library)

    class LargestError(K.metrics.Metric):
        def __init__(self, name="largest_error"):
            super().__init__(name=name)
            self.largest = self.add_weight(name="largest", shape=(), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            error = tf.reduce_max(tf.abs(tf.reshape(y_true, [-1, 1]) - y_pred))
            self.largest.assign(tf.maximum(tf.convert_to_tensor(self.largest), error))

        def result(self):
            return tf.convert_to_tensor(self.largest)

    model = _net(K)
    model.compile(K.optimizers.SGD(0.05), loss="mse", metrics=["mae", LargestError()])
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


def weighted(*, library: str = "tf_keras", loss: str = "mse", flat: bool = False):
    K = _K(library)
    model = _net(K, flat=flat)
    model.compile(
        K.optimizers.SGD(0.05), loss=LOSSES[loss], metrics=["mae"], weighted_metrics=["mse"]
    )
    return model


def only_added(*, library: str = "keras"):
    """A model whose only loss is what a layer adds."""
    K = _K(library)

    class Adds(K.layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_mean(tf.square(inputs - 1.0)))
            return inputs

    inputs = K.Input([4])
    model = K.Model(inputs, Adds()(K.layers.Dense(1)(inputs)))
    model.compile(K.optimizers.SGD(0.05))
    return model


def guide(variant: int, *, library: str = "keras", loss: str = "mean"):
    """Keras' guide "Customizing what happens in fit", and losses of its steps of other forms."""
    K = _K(library)

    class Custom(K.Model):
        def train_step(self, data):
            x, y, weight = (*data, None)[:3]
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                if variant == 1:
                    value = (
                        self.compute_loss(y=y, y_pred=p, sample_weight=weight)
                        if library == "keras"
                        else self.compiled_loss(y, p, weight, regularization_losses=self.losses)
                    )
                else:
                    square = tf.square(tf.reshape(tf.cast(y, tf.float32), [-1, 1]) - p)
                    value = {
                        "vector": lambda: square,
                        "sum": lambda: tf.reduce_sum(square),
                        "mean": lambda: tf.reduce_mean(square),
                        "neither": lambda: tf.square(tf.reduce_sum(square)),
                    }[loss]()
            weights = self.trainable_variables
            gradients = tape.gradient(value, weights)
            if library == "keras":
                self.optimizer.apply(gradients, weights)
            else:
                self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            if variant == 1:
                for metric in self.metrics:
                    if metric.name == "loss":
                        if library == "keras":
                            metric.update_state(value)
                    elif library == "keras":
                        metric.update_state(y, p)
                if library != "keras":
                    self.compiled_metrics.update_state(y, p)
                return {metric.name: metric.result() for metric in self.metrics}
            return {"loss": value}

        def test_step(self, data):
            x, y = data[:2]
            p = self(x, training=False)
            if variant == 3:  # compares the examples of a batch
                scores = tf.matmul(p, p, transpose_b=True)
                return {"loss": tf.reduce_mean(tf.reduce_logsumexp(scores, axis=1))}
            return {"loss": tf.reduce_mean(tf.square(tf.reshape(y, [-1, 1]) - p))}

    model = _net(K, base=Custom)
    compiled = {"loss": "mse", "metrics": ["mae"]} if variant == 1 else {}
    model.compile(K.optimizers.SGD(0.005), **compiled)
    return model


def of_texts(*, library: str = "keras"):
    """A model that begins with `TextVectorization`."""
    K = _K(library)
    vectorize = K.layers.TextVectorization(output_mode="int", output_sequence_length=4)
    vectorize.adapt(["good bad fine poor", "so so"])
    inputs = K.Input([], dtype="string")
    embedded = K.layers.Embedding(8, 3, mask_zero=True)(vectorize(inputs))
    outputs = K.layers.Dense(1, activation="sigmoid")(K.layers.GlobalAveragePooling1D()(embedded))
    model = K.Model(inputs, outputs)
    model.compile(K.optimizers.SGD(0.5), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def texts():
    """Return 24 training and 13 test texts, each with a class."""
    words = np.array(["good fine", "bad", "poor so", "fine", "so good", "bad poor"], object)

    def part(count):
        return words[np.arange(count) % 6], (np.arange(count) % 2).astype(np.float32)

    return part(24), part(13)


def two_outputs(*, library: str = "keras"):
    """A model of two outputs, in which class weights have no meaning."""
    K = _K(library)
    inputs = K.Input([4])
    outputs = [K.layers.Dense(1)(inputs), K.layers.Dense(1)(inputs)]
    model = K.Model(inputs, outputs)
    model.compile(K.optimizers.SGD(0.05), loss=["mse", "mse"])
    return model


def of_two():
    """Return examples of two labels."""
    return tuple((x, (y, -y)) for x, y in rows())
