"""Bit for bit: what must not change a single bit of a run."""

import pytest

from tests.support.processes import ROOT, log, succeed
from tests.support.training import RANDOM, assert_same_bits, engine, train, trained, variables
from trainer.runs.checkpoint_marker import read_marker

OPTIONS = (*RANDOM, "train.ema_decay=0.9", "summary.every_steps=3", "evaluate.every_steps=4")


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_loop", [7, "auto"])
def test_steps_per_loop_changes_no_bit(tmp_path, steps_per_loop):
    straight = trained(*OPTIONS)
    other = train(tmp_path, *OPTIONS, f"train.steps_per_loop={steps_per_loop}")
    assert_same_bits(straight.variables, other)
    assert log(straight.run_dir) == log(tmp_path)


@pytest.mark.slow
def test_stop_within_evaluation_at_saved_step_leaves_no_trace(tmp_path):
    options = [
        "evaluate.every_steps=4",
        "checkpoint.every_steps=4",
        "checkpoint.keep=1",
        "checkpoint.best.metric=accuracy",
    ]
    stopped = []

    def stop(training):
        # Asked within the evaluation too, where the step is done and not yet reported.
        is_within = int(training.state.last_reported_step.numpy()) < training.step == 8
        if is_within and not stopped:
            stopped.append(training.step)
            return True
        return False

    expected = train(tmp_path / "straight", *options)
    train(tmp_path / "stopped", *options, stop=stop)
    assert stopped
    assert_same_bits(expected, train(tmp_path / "stopped", *options))
    for directory in ("straight", "stopped"):
        training = engine(tmp_path / directory, *options)
        assert training.checkpointer.restore_latest() == 8
        assert_same_bits(expected, variables(training))
    straight, other = (
        read_marker(tmp_path / directory / "checkpoints", 8)
        for directory in ("straight", "stopped")
    )
    assert straight["metrics"] == other["metrics"] != {}


@pytest.mark.slow
def test_deterministic_run_that_reads_its_data_reads_no_clock(tmp_path):
    succeed(
        tmp_path, "deterministic=true", "model=softmax", "train.steps=3",
        "dataset._target_=tests.engine.graph.asynchronous.test_async_loops.files",
        PYTHONPATH=str(ROOT),
    )  # fmt: skip
