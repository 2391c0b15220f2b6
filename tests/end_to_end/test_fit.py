"""`fit` in a script: two lines changed from `model.fit`, and everything that the command has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_pages import ROOT

SCRIPT = """
import json
import sys

import keras
import numpy as np

from trainer import fit

x = np.random.default_rng(0).normal(size=[200, 8]).astype("float32")
y = (x[:, :3]).argmax(-1)
width = int(len(x[0]) / 2)


class Gated(keras.layers.Layer):
    def build(self, shape):
        self.gate = self.add_weight(shape=[shape[-1]], initializer="ones")

    def call(self, inputs):
        return inputs * self.gate


def own_loss(label, output):
    return keras.losses.sparse_categorical_crossentropy(label, output)


model = keras.Sequential(
    [keras.Input([8]), Gated(), keras.layers.Dense(width), keras.layers.Dense(3, "softmax")]
)
model.compile(keras.optimizers.Adam(0.05), own_loss, metrics=["accuracy"])
keys = json.loads(sys.argv[1])
run = fit(model, (x, y), validation=(x[:40], y[:40]), epochs=2, batch_size=20, **keys)
loss, accuracy = run.model().evaluate(x[:40], y[:40], verbose=0)
result = {"loss": loss, "accuracy": accuracy, "directory": str(run.directory)}
print("RESULT", json.dumps({**result, "history": run.history, "state": run.status.state}))
"""

AS_IT_IS = """
import json
import sys

import numpy as np
import tensorflow as tf

from trainer import fit

try:
    import keras
except ImportError:
    keras = tf.keras

x = np.random.default_rng(0).normal(size=[200, 8]).astype("float32")
y = (x[:, :3]).argmax(-1)
MATRIX = tf.constant(np.eye(8, dtype="float32") * 2)


class Net(tf.keras.Model):
    def __init__(self, units):
        super().__init__()
        draw = tf.random_normal_initializer(0.0, 0.2)
        self.first = tf.keras.layers.Dense(units, kernel_initializer=draw)
        self.second = tf.keras.layers.Dense(3, "softmax")

    def compile(self, rate):
        super().compile(tf.keras.optimizers.SGD(rate), own_loss)


if len(x) > 3:
    def own_loss(label, output):
        return keras.losses.sparse_categorical_crossentropy(label, output)


def call(self, inputs):
    return self.second(self.first(inputs @ MATRIX))


Net.call = call


def make():
    model = Net(5)
    model.compile(0.05)
    return model


keys = json.loads(sys.argv[1])
given = make if keys.pop("lazy", False) else make()
run = fit(given, (x, y), validation=(x[:40], y[:40]), batch_size=20, **keys)
loss = run.model().evaluate(x[:40], y[:40], verbose=0)
result = {"loss": loss, "directory": str(run.directory)}
print("RESULT", json.dumps({**result, "history": run.history, "state": run.status.state}))
"""


def start(folder: Path, keys: dict[str, Any], text: str = SCRIPT) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(text)
    variables = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    return subprocess.Popen(
        [sys.executable, "script.py", json.dumps(keys)],
        cwd=folder,
        env={**variables, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert process.returncode == 0, output
    result: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return {**result, "output": output}


@pytest.mark.slow
def test_script_trains_its_own_classes_and_the_same_call_finds_the_run(tmp_path: Path) -> None:
    first = result_of(start(tmp_path, {}))
    history = first["history"]
    assert {len(values) for values in history.values()} == {2}
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= history.keys()
    assert first["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-4)
    assert history["loss"][1] < history["loss"][0]
    again = result_of(start(tmp_path, {}))
    assert "Already finished" in again["output"]
    assert again["directory"] == first["directory"]
    assert again["history"] == history


@pytest.mark.slow
def test_objects_of_tf_keras_train_as_they_are(tmp_path: Path) -> None:
    given = result_of(start(tmp_path, {}, AS_IT_IS))
    assert given["loss"] == pytest.approx(given["history"]["val_loss"][-1], rel=1e-4)
    assert given["history"]["loss"][2] < given["history"]["loss"][0]
    built = result_of(start(tmp_path, {"lazy": True}, AS_IT_IS))
    assert built["directory"] != given["directory"]
    assert built["history"] == given["history"]  # the seed of the run draws the weights
    assert built["loss"] == given["loss"]
