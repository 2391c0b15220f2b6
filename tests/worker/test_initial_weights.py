"""The first Keras 3 model of a process has the initial weights of every later one."""

import os
import sys

import pytest

from tests.support.processes import run_program

NET = """
def net():
    import keras

    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
"""
PROGRAM = """
from pathlib import Path
from tests.support.training import recipe

for name in "ab":
    built = recipe(Path(name), "model._target_=net.net", "dataset=digits", "train.steps=2")
    kernel, _ = built.loop.state.task.models["model"].variables
    print(kernel.numpy().tobytes().hex()[:32])
"""


@pytest.mark.slow
def test_first_model_has_the_weights_of_later_ones(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    path = os.pathsep.join([os.getcwd(), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "TF_USE_LEGACY_KERAS": "1"}
    output = run_program(sys.executable, "-c", PROGRAM, cwd=tmp_path, env=env)
    first, second = output.split()
    assert first == second
