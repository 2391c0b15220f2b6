"""`fit` in a script: two lines changed from `model.fit`, and everything that the command has."""

import json
import os
import sys

import pytest

from tests.support.processes import ROOT, run_program

SCRIPT = """
import json

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
run = fit(model, (x, y), validation=(x[:40], y[:40]), epochs=2, batch_size=20)
loss, accuracy = run.model().evaluate(x[:40], y[:40], verbose=0)
result = {"loss": loss, "accuracy": accuracy, "directory": str(run.directory)}
print("RESULT", json.dumps({**result, "history": run.history, "state": run.status.state}))
"""


def run(folder):
    """Run the script; return its result and what it printed."""
    (folder / "script.py").write_text(SCRIPT)
    variables = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    variables["PYTHONPATH"] = str(ROOT)
    output = run_program(sys.executable, "script.py", cwd=folder, env=variables)
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return {**json.loads(line.removeprefix("RESULT ")), "output": output}


@pytest.mark.slow
def test_script_trains_its_own_classes_and_the_same_call_finds_the_run(tmp_path):
    first = run(tmp_path)
    history = first["history"]
    assert {len(values) for values in history.values()} == {2}
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= history.keys()
    assert first["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-4)
    assert history["loss"][1] < history["loss"][0]
    again = run(tmp_path)
    assert "Already finished" in again["output"]
    assert again["directory"] == first["directory"]
    assert again["history"] == history
