"""Callbacks in real processes, some of which are killed: each event is in the history once."""

import re

import pytest

from tests.support.hosts import two_hosts
from tests.support.processes import final_variables, finish, only_run, run

SUMMING = '''
import json
import os
import pathlib
import signal

import tensorflow as tf


class Summing:
    """Adds up the steps that it sees, in the chief alone."""

    every = 7

    def __init__(self, *, size: int):
        self.total = tf.Variable([0] * size, trainable=False)

    def on_train_begin(self, training):
        self.total.assign(self.total + 1000)

    def on_step(self, training):
        self.total.assign(self.total + training.step)


class Killing:
    """Kills some of the workers at a step, each once."""

    every, everywhere = 10, True

    def __init__(self, *, at: int, workers: list[int]):
        self.at, self.workers = at, list(workers)

    def on_step(self, training):
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        killed = pathlib.Path(f"killed-{index}")
        if training.step == self.at and index in self.workers and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
'''
SUMMING_OPTIONS = [
    "strategy=multi_worker", "batch.shards=2", "batch.global_size=8", "model=softmax",
    "train.steps=60", "checkpoint.every_epochs=null", "checkpoint.every_steps=60",
    "summary.every_steps=25", "evaluate.every_epochs=null", "evaluate.every_steps=60",
    "restart.backoff_secs=0",
]  # fmt: skip
ADDRESSES = ["10.78.0.10:23456", "10.78.0.11:23456"]


@pytest.mark.parametrize(
    ("is_one_host", "workers"),
    [
        pytest.param(True, [0], marks=pytest.mark.slow, id="one-host-chief"),
        pytest.param(False, [1], marks=pytest.mark.long, id="two-hosts-worker"),
        pytest.param(False, [0, 1], marks=pytest.mark.long, id="two-hosts-both"),
    ],
)
def test_state_of_a_callback_in_the_chief_survives_kills(tmp_path, is_one_host, workers):
    (tmp_path / "summing.py").write_text(SUMMING)
    killing = f"+callbacks.kill={{_target_:summing.Killing,at:50,workers:{workers}}}"
    size = 1 if is_one_host else 200
    summing = f"+callbacks.sum={{_target_:summing.Summing,size:{size}}}"
    options = [*SUMMING_OPTIONS, summing, killing.replace(" ", "")]
    if is_one_host:
        code, *outputs = run(tmp_path, *options, "strategy.workers=2")
        output = "".join(outputs)
    else:
        with two_hosts() as hosts:
            processes = hosts.start_cluster(tmp_path, ADDRESSES, *options, "runs_dir=runs")
            results = [finish(process) for process in processes]
        code = max(code for code, _, _ in results)
        output = "".join(out + err for _, out, err in results)
    assert code == 0, output
    assert "in memory differ" not in output
    assert re.search(r"Continuing from step \d+ \(memory of", output), output
    variables = final_variables(only_run(tmp_path))
    (total,) = [value for name, value in variables.items() if "callbacks/sum/total" in name]
    # Two attempts begin, and each step counts once.
    assert total.tolist() == [2000 + sum(range(7, 61, 7))] * size
