"""Callbacks in real processes, one of which is killed: each event is in the history once."""

import pytest

from tests.support.processes import final_variables, only_run, run

CALLBACK = '''
import os
import pathlib
import signal

import numpy as np
import tensorflow as tf


class Counting:
    """Records its calls, and predicts; the process is killed at a step, once."""

    every = 3

    def __init__(self, *, name: str, everywhere: bool = False, kill: int = 0):
        self.file, self.everywhere, self.kill = pathlib.Path(name), everywhere, kill
        self.calls = tf.Variable(0, trainable=False)

    def note(self, event, training):
        with self.file.open("a") as file:
            file.write(f"{event}-{training.step}\\n")
        self.calls.assign_add(1)
        images = np.zeros([2, 8, 8, 1], "float32")
        (model,) = training.models.values()
        assert model.predict(images, verbose=0).shape == (2, 10)
        assert np.all(np.isfinite(model(images, training=False)))

    def on_train_begin(self, training):
        self.note("begin", training)

    def on_step(self, training):
        self.note("step", training)
        killed = pathlib.Path("killed")
        if training.step == self.kill and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, training):
        self.note("epoch", training)

    def on_train_end(self, training):
        self.note("end", training)
'''
OPTIONS = [
    "model=cnn", "model.width=4", "model.batch_norm=true", "train.steps=12",
    "train.steps_per_epoch=4", "batch.global_size=16", "checkpoint.every_steps=5",
    "checkpoint.every_epochs=null", "checkpoint.memory=never",
    "+callbacks.chief={_target_: counting.Counting, name: chief, kill: 9}",
    "+callbacks.all={_target_: counting.Counting, name: all, everywhere: true}",
]  # fmt: skip
MULTI_WORKER = ["strategy=multi_worker", "strategy.workers=2"]
BEFORE = ["begin-0", "step-3", "epoch-4", "step-6", "epoch-8", "step-9"]
AFTER = ["begin-5", "step-6", "epoch-8", "step-9", "step-12", "epoch-12", "end-12"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "count"), [([], 1), (MULTI_WORKER, 2), (["strategy=parameter_server"], 1)]
)
def test_events_since_the_checkpoint_are_repeated_after_a_kill(tmp_path, layout, count):
    (tmp_path / "counting.py").write_text(CALLBACK)
    code, out, err = run(tmp_path, *OPTIONS, *layout)
    assert code == 0, err
    assert "Continuing from the checkpoint of step 5." in out
    assert (tmp_path / "chief").read_text().split() == [*BEFORE, *AFTER]
    # The chief was killed before it called the second callback; the others may have called it.
    everywhere = (tmp_path / "all").read_text().split()
    assert {everywhere.count(event) for event in ("begin-0", "step-3", "end-12")} == {count}
    assert {everywhere.count(event) for event in ("step-6", "epoch-8")} == {2 * count}
    variables = final_variables(only_run(tmp_path))
    calls = [value for name, value in variables.items() if "callbacks" in name and "calls" in name]
    history = [*BEFORE[:3], *AFTER[1:-1]]
    assert calls == [len(history) + 1] * 2  # with the first begin; nothing is saved after the last
