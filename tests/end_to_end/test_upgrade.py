"""A run that goes on after options with defaults were added to all that it is made of."""

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT, final_variables, finish, only_run, run
from tests.support.training import assert_same_bits

NET = """
import tensorflow as tf


def net(input_shape, num_classes, *, width: int = 8{more}):
    inputs = tf.keras.Input(input_shape)
    x = tf.keras.layers.Flatten()(inputs)
    x = tf.keras.layers.Dropout(0.3)(tf.keras.layers.Dense(width)(x))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes, dtype="float32")(x))
"""
DATA = """
from trainer.datasets.digits import digits


def data(*, resize: bool = False{more}):
    return digits()
"""
TASK = """
from trainer.tasks.classification import Classification


class Task(Classification):
    def __init__(self, *, smoothing: float = 0.1{more}):
        super().__init__(label_smoothing=smoothing)
"""
UPGRADED = """
import dataclasses
import sys

from trainer.config import schema


@dataclasses.dataclass
class Train(schema.Train):
    extra: int = schema.key(3, "")


@dataclasses.dataclass
class Experiment(schema.Experiment):
    train: Train = schema.key(Train, "")
    extra: str | None = schema.key("none", "")


schema.Train, schema.Experiment = Train, Experiment

if __name__ == "__main__":
    from trainer.main import main

    main()
"""
COMMAND = [
    "--config-dir=conf", "model=mine", "dataset=mine", "task=mine", "train.steps=9",
    "batch.global_size=16", "evaluate.every_epochs=null", "checkpoint.every_epochs=null",
]  # fmt: skip
STOP = "+fault.stop={action:terminate,process:chief,phase:step,at:5}"


def write(directory, more=""):
    """Write a user's project, whose targets have further options."""
    for group, target in (("model", "net.net"), ("dataset", "data.data"), ("task", "task.Task")):
        folder = directory / "conf" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mine.yaml").write_text(f"_target_: {target}\n")
    for name, text in (("net", NET), ("data", DATA), ("task", TASK)):
        (directory / f"{name}.py").write_text(text.replace("{more}", more))


def run_upgraded(directory, *overrides):
    """Run the command with a schema that has two keys more."""
    (directory / "upgraded.py").write_text(UPGRADED)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return finish(
        subprocess.Popen(
            [sys.executable, "upgraded.py", *overrides],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    )


@pytest.mark.slow
def test_run_goes_on_to_the_bit_after_options_were_added(tmp_path):
    undisturbed, upgraded = tmp_path / "undisturbed", tmp_path / "upgraded"
    write(undisturbed)
    write(upgraded)
    code, _, err = run(undisturbed, *COMMAND)
    assert code == 0, err
    code, _, err = run(upgraded, *COMMAND, STOP)
    assert code == 143, err
    path = only_run(upgraded)
    write(upgraded, ", depth: int = 3, scale: float | None = None")
    code, out, err = run_upgraded(upgraded, *COMMAND, STOP)
    assert code == 0, err
    assert only_run(upgraded) == path
    assert "Continuing from the checkpoint of step 5." in out
    assert "Changed" not in out
    assert (
        "warning: the run was trained with other code in data.py, net.py, task.py; for a run with "
        "the code as it is now use resume=never, or another name=<name>"
    ) in out.splitlines()
    assert_same_bits(final_variables(only_run(undisturbed)), final_variables(path))
    code, out, _ = run(upgraded, f"resume={path}")
    assert (code, len(out.splitlines())) == (0, 2)
    assert out.startswith("Already finished: step 9, test loss")
