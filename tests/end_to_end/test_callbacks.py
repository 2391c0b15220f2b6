"""The state of a callback in a real process that is killed."""

import re

import pytest

from tests.support.processes import final_variables, only_run, succeed

SUMMING = '''
import os
import pathlib
import signal

import tensorflow as tf


class Summing:
    """Adds up the steps that it sees, in the chief alone."""

    every = 7

    def __init__(self):
        self.total = tf.Variable(0, trainable=False)

    def on_train_begin(self, training):
        self.total.assign(self.total + 1000)

    def on_step(self, training):
        self.total.assign(self.total + training.step)


class Killing:
    """Kills the chief at a step, once."""

    every = 50

    def on_step(self, training):
        if not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
'''
SUMMING_OPTIONS = [
    "strategy=multi_worker", "batch.shards=2", "batch.global_size=8", "model=softmax",
    "train.steps=60", "checkpoint.every_epochs=null", "checkpoint.every_steps=60",
    "summary.every_steps=25", "evaluate.every_epochs=null", "evaluate.every_steps=60",
    "restart.backoff_secs=0",
]  # fmt: skip


@pytest.mark.slow
def test_state_of_a_callback_in_the_chief_survives_its_kill(tmp_path):
    (tmp_path / "summing.py").write_text(SUMMING)
    callbacks = [f"+callbacks.{x}={{_target_:summing.{x}}}" for x in ("Killing", "Summing")]
    out = succeed(tmp_path, *SUMMING_OPTIONS, *callbacks, "strategy.workers=2")
    assert "in memory differ" not in out
    assert re.search(r"Continuing from step \d+ \(memory of", out), out
    variables = final_variables(only_run(tmp_path))
    (total,) = [value for name, value in variables.items() if "callbacks/Summing/total" in name]
    # Two attempts begin, and each step counts once.
    assert total == 2000 + sum(range(7, 61, 7))
