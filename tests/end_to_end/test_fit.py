"""`fit` in a script: two lines changed from `model.fit`, and everything that the command has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_pages import ROOT
from trainer.runs.status import State, run_status

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


def start(folder: Path, keys: dict[str, Any]) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
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


def command(folder: Path, *words: str) -> str:
    program: Sequence[str] = [sys.executable, str(ROOT / "train.py"), *words]
    return subprocess.run(
        program, cwd=folder, capture_output=True, text=True, timeout=240, check=True
    ).stdout


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
@pytest.mark.long
def test_killed_training_has_the_history_of_one_that_was_not(tmp_path: Path) -> None:
    whole = result_of(start(tmp_path / "whole", {}))
    fault = {"process": "chief", "at": 15}
    killed = result_of(start(tmp_path / "killed", {"fault__mine": fault}))
    assert "in 2 attempts" in killed["output"]
    assert killed["history"] == whole["history"]


@pytest.mark.slow
@pytest.mark.long
def test_killed_script_continues_on_the_command_line(tmp_path: Path) -> None:
    process = start(tmp_path, {"train__epochs": 100_000})
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/sequential-*/checkpoints/*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (directory,) = tmp_path.glob("runs/sequential-*")
    while (status := run_status(directory)).state is State.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    text = command(tmp_path, f"resume={directory}", f"train.steps={status.step + 5}")
    assert "Continuing from the checkpoint of step" in text
    assert f"Done: step {status.step + 5}" in text
