"""A model of two inputs and two outputs, compiled by output, and its columns, weighted."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np


def columns():
    """Return training and test data: dicts of columns, of labels, and weights."""
    rng = np.random.default_rng(0)

    def part(count):
        x = {"size": rng.normal(size=(count, 3)), "kind": rng.integers(0, 5, (count, 1))}
        y = {"price": x["size"].sum(axis=1), "shape": (x["size"][:, 0] > 0).astype("int64")}
        return x, y, rng.random(count) + 0.5

    return part(96), part(40)


def net(*, library: str = "tf_keras"):
    K: Any = importlib.import_module(library)
    layers = K.layers
    size, kind = K.Input([3], name="size"), K.Input([1], dtype="int32", name="kind")
    embedded = layers.Flatten()(layers.Embedding(5, 2)(kind))
    hidden = layers.Dense(8, activation="relu")(layers.Concatenate()([size, embedded]))
    outputs = {
        "price": layers.Dense(1, name="price")(hidden),
        "shape": layers.Dense(2, activation="softmax", name="shape")(hidden),
    }
    model = K.Model({"size": size, "kind": kind}, outputs)
    model.compile(
        K.optimizers.Adam(0.01),
        loss={"price": "mse", "shape": "sparse_categorical_crossentropy"},
        loss_weights={"price": 0.5, "shape": 2.0},
        metrics={"price": ["mae"], "shape": ["accuracy"]},
    )
    return model
