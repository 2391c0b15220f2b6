"""A process of mode=benchmark, with its parent's part played here."""

import pytest

from tests.support.training import engine
from trainer.worker.modes import step_timing

ENDLESS = ["train.steps=1000000", "train.steps_per_epoch=1000000", "evaluate.every_epochs=null",
           "checkpoint.every_epochs=null", "summary.every_steps=1000000", "writers=[]",
           "train.steps_per_loop=2"]  # fmt: skip


class Heard(Exception):
    """Ends the training, as the parent does by ending the process."""


class Parent:
    """Asks when the process is warm."""

    def __init__(self, messages):
        self.reports = []
        self.asks = False
        self._messages = messages

    def send(self, message):
        self.reports.append(message.values)
        self.asks = True
        if len(self.reports) == self._messages:
            raise Heard

    def begin(self):
        asks, self.asks = self.asks, False
        return asks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "replicas"),
    [([], 1), (["strategy=mirrored", "strategy.virtual_devices=2"], 2)],
)
def test_process_reports_that_it_is_warm_then_its_window(tmp_path, overrides, replicas):
    run = engine(tmp_path, *ENDLESS, *overrides)
    parent = Parent(2)
    with pytest.raises(Heard):
        step_timing.measure(run, parent, parent.begin, 0.05)
    warm, window = parent.reports
    assert warm == {}
    assert window["steps"] > 0
    assert window["replicas"] == replicas
    assert window["examples_per_sec"] == 16 / window["step_secs"]
    assert window["input_wait"] == 0.0  # the examples are in memory
    assert window["processor_secs"] > 0
    weights = run.state.task.models["model"].trainable_variables
    assert window["gradient_bytes"] == 4 * sum(x.shape.num_elements() for x in weights)
    assert (window["exchange_secs"] is not None) == (replicas > 1)
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
