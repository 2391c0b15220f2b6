"""A process of mode=benchmark, with its parent's part played here."""

import pytest

from tests.support.training import engine
from trainer.worker import step_timing

ENDLESS = ["train.steps=1000000", "train.steps_per_epoch=1000000", "evaluate.every_epochs=null",
           "checkpoint.every_epochs=null", "summary.every_steps=1000000", "writers=[]",
           "train.steps_per_loop=2"]  # fmt: skip


class Heard(Exception):
    """Ends the training, as the parent does by ending the process."""


class Parent:
    """Asks when the process is warm, and again when it has the window."""

    def __init__(self, messages):
        self.reports = []
        self.asks = False
        self._messages = messages

    def measured(self, values):
        self.reports.append(values)
        self.asks = True
        if len(self.reports) == self._messages:
            raise Heard

    def begin(self):
        asks, self.asks = self.asks, False
        return asks


@pytest.mark.parametrize(
    ("overrides", "replicas"),
    [([], 1), (["strategy=mirrored", "strategy.virtual_devices=2"], 2)],
)
def test_process_reports_that_it_is_warm_its_window_and_its_kernels(tmp_path, overrides, replicas):
    run = engine(tmp_path, *ENDLESS, *overrides)
    parent = Parent(3)
    with pytest.raises(Heard):
        step_timing.measure(run, parent, parent.begin, 0.05)
    warm, window, kernels = parent.reports
    assert warm == {}
    assert window["steps"] > 0
    assert window["replicas"] == replicas
    assert window["examples_per_sec"] == 16 / window["step_secs"]
    assert window["input_wait"] == 0.0  # the examples are in memory
    assert window["processor_secs"] > 0
    assert window["peak_memory_mib"] >= 0.9 * window["memory_mib"]
    weights = run.state.task.models["model"].trainable_variables
    assert window["gradient_bytes"] == 4 * sum(x.shape.num_elements() for x in weights)
    assert ("exchange_secs" in window) == ("latency_secs" in window) == (replicas > 1)
    assert all(secs > 0 for secs in kernels["kernels"].values())
    assert not (tmp_path / "checkpoints").exists()


def test_process_goes_on_training_until_it_is_asked(tmp_path):
    run = engine(tmp_path, *ENDLESS)
    parent = Parent(2)
    calls = 0

    def ask_late():
        nonlocal calls
        calls += 1
        return calls == 5

    with pytest.raises(Heard):
        step_timing.measure(run, parent, ask_late, 0.01)
    assert calls >= 5
    assert len(parent.reports) == 2
