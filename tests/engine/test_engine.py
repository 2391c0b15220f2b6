"""What the engine does whatever fails, and what it says it does meanwhile."""

import threading

import pytest
import tensorflow as tf

from tests.support.training import SMALL
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Phase
from trainer.engine.graph.input.feed import SampleOrder
from trainer.worker.training import TrainingRun

BAD_STEP = ("divergence.action=rollback", "checkpoint.every_steps=2", "checkpoint.keep=9")


def engine_with_phases(run_dir, *overrides):
    """Build an engine; return it and the list of the phases that it reports."""
    phases = []
    channel = Channel(lambda message: isinstance(message, Phase) and phases.append(message.phase))
    return TrainingRun(compose([*SMALL, *overrides]), run_dir, channel).engine, phases


def test_checkpoint_in_the_background_is_committed_though_closing_fails(tmp_path, monkeypatch):
    engine, phases = engine_with_phases(
        tmp_path, "checkpoint.async_write=true", "train.steps_per_loop=1"
    )
    checkpointer = engine.checkpointer
    is_awaited = threading.Event()
    monkeypatch.setattr(checkpointer, "before_commit", lambda: is_awaited.wait(60))
    wait = checkpointer.wait
    during = []

    def wait_and_release():
        during.append(phases[-1])
        is_awaited.set()
        wait()

    def fail():
        monkeypatch.setattr(checkpointer, "wait", wait_and_release)
        raise OSError("the disk of the writer is full")

    monkeypatch.setattr(engine.reporter, "close", fail)
    with pytest.raises(OSError, match="the disk of the writer is full"):
        engine.train(lambda: engine.step >= 4)
    is_awaited.set()
    assert checkpointer.steps() == [4]
    assert during == ["save"]  # not hidden in a phase that is expected to be short


def test_rollback_restores_in_a_phase_that_may_take_long(tmp_path, monkeypatch):
    example = int(SampleOrder(1437, 0).locate(tf.constant([16 * 5], tf.int64))[1][0])
    bad = ("dataset._target_=tests.support.toy_datasets.poisoned", f"+dataset.ids=[{example}]")
    engine, phases = engine_with_phases(tmp_path, *BAD_STEP, *bad)
    restored_in = []
    restore = engine.checkpointer.restore

    def noting(step):
        restored_in.append(phases[-1])
        restore(step)

    monkeypatch.setattr(engine.checkpointer, "restore", noting)
    engine.train(lambda: False)
    assert restored_in == ["compile"]
