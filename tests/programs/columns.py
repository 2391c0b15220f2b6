"""Columns of numbers and texts, two labels and sample weights, with a custom task."""

import os

import numpy as np
import tensorflow as tf

from trainer.datasets.digits import digits


def columns(*, count=40, parts=3, seed=None):
    """Return arrays as `model.fit` takes them, in as many parts."""
    draws = np.random.default_rng(
        int(os.environ.get("COLUMNS_SEED", "0")) if seed is None else seed
    )

    def part():
        color = np.array(["red", "green", "blue"])[draws.integers(0, 3, count)]
        x = {"size": draws.normal(size=(count, 3)), "color": color, "age": np.arange(count) % 5}
        y = {"price": draws.normal(size=count), "sold": draws.integers(0, 2, count)}
        return x, y, draws.random(count)

    made = tuple(part() for _ in range(parts))
    return made if parts > 1 else made[0]


def batches(*, seed=0):
    """Return the same in batches, shuffled."""
    examples = tf.data.Dataset.from_tensor_slices(columns(parts=1, seed=seed))
    return examples.shuffle(20).batch(16)


def drawn(*, count=40):
    """Return others whenever it is called."""
    return columns(count=count, parts=1, seed=np.random.SeedSequence().entropy % 2**32)


def pixels(*, count=64):
    batch = digits().train.fetch(tf.range(count))
    return batch["features"].numpy(), batch["label"].numpy()


def net(input_shape, num_classes):
    """Build a model of three inputs and two outputs."""
    layers = tf.keras.layers
    assert input_shape == {"size": (3,), "color": (), "age": ()}, num_classes
    inputs = {
        "size": tf.keras.Input((3,)),
        "color": tf.keras.Input((), dtype=tf.string),
        "age": tf.keras.Input((), dtype=tf.int64),
    }
    color = tf.one_hot(tf.strings.to_hash_bucket_fast(inputs["color"], 5), 5)
    age = layers.Embedding(5, 2)(inputs["age"])
    hidden = layers.Dense(8, activation="relu")(layers.concatenate([inputs["size"], color, age]))
    hidden = layers.Dropout(0.3)(hidden)
    outputs = {"price": layers.Dense(1)(hidden)[:, 0], "sold": layers.Dense(2)(hidden)}
    return tf.keras.Model(inputs, outputs)


class TwoLosses:
    """Learns a price and a class, each example by its weight."""

    metrics = ("loss",)

    def build(self, parts):
        self.models = {"model": parts.model()}
        self.optimizers = {"model": parts.optimizer()}

    def _losses(self, batch, *, training):
        outputs = self.models["model"](batch["features"], training=training)
        price = tf.square(outputs["price"] - batch["label"]["price"])
        sold = tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["label"]["sold"], outputs["sold"]
        )
        return (price + sold) * batch["sample_weight"], {}

    def train_step(self, batch, step):
        return step.minimize(
            lambda part: self._losses(part, training=True),
            batch,
            self.models["model"],
            self.optimizers["model"],
        )

    def eval_step(self, batch):
        return self._losses(batch, training=False)

    def predict_step(self, batch):
        return self.models["model"](batch["features"], training=False)
