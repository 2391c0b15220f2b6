"""A run that ends at any moment of an event continues from memory as if it had not ended.

And what the engine does whatever fails, and what it says it does meanwhile.
"""

import functools
import itertools
import os
import threading

import pytest
import tensorflow as tf

from tests.support.processes import log
from tests.support.scratch import new_folder
from tests.support.training import assert_same_bits, finish, lines_of, recipe
from trainer.cli.compose import compose
from trainer.cluster.host_memory import resident_bytes
from trainer.cluster.messages import Channel, Phase
from trainer.engine.graph.input.feed import SampleOrder
from trainer.runs.state_memory import MemoryFiles, StateMemory
from trainer.worker.training import TrainingRun

RUN = (
    "model=softmax", "train.steps=8", "train.steps_per_loop=4", "batch.global_size=16",
    "summary.every_steps=2", "evaluate.every_steps=4", "evaluate.every_epochs=null",
    "checkpoint.every_steps=4", "checkpoint.keep=9", "checkpoint.best.metric=accuracy",
    "train.ema_decay=0.9", "writers=[jsonl]",
    "+callbacks.counter._target_=tests.engine.test_run_state.Counter",
)  # fmt: skip


class Counter:
    """A callback that counts its calls in a variable of the state."""

    every = 3

    def __init__(self):
        self.calls = tf.Variable(0, trainable=False)

    def on_step(self, training):
        self.calls.assign_add(1)

    def on_evaluate(self, step, metrics):
        self.calls.assign_add(100)


class Killed(BaseException):
    """Ends a process as a kill does: nobody handles it."""


class Run:
    """The attempts of a run in this process, which keep their state in the same memory.

    Attributes:
        messages: those of the newest attempt.
    """

    def __init__(self, run_dir):
        self.run_dir = run_dir
        self.memory = StateMemory(os.memfd_create("test"))
        self.messages = []

    def start(self, *overrides):
        """Return the engine of the next attempt."""
        self.messages.clear()
        newest = lambda: ["worker-0"] * bool(self.memory.newest())  # noqa: E731
        files = MemoryFiles(self.memory, {"worker-0": self.memory}, newest)
        experiment, channel = compose([*RUN, *overrides]), Channel(self.messages.append)
        return TrainingRun(experiment, self.run_dir, channel, memory_files=files).engine

    def phase(self):
        """Return the phase that was reported last."""
        return [x.phase for x in self.messages if isinstance(x, Phase)][-1]


@functools.cache
def straight():
    """Return the directory and the state of the run that is not killed."""
    run_dir = new_folder()
    return run_dir, finish(recipe(run_dir, *RUN))


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    yield run
    run.memory.close()


def kill_in(owner, name, number, *, before):
    """Have call `number` of a method end the process, before or after what it does."""
    method = getattr(owner, name)
    calls = itertools.count(1)

    @functools.wraps(method)
    def call(*arguments, **options):
        is_last = next(calls) == number
        if is_last and before:
            raise Killed
        result = method(*arguments, **options)
        if is_last:
            raise Killed
        return result

    setattr(owner, name, call)


MOMENTS = {
    "evaluation": lambda engine: (engine.evaluator, "evaluate", 1),
    "metrics": lambda engine: (engine.reporter, "write_train_metrics", 2),
    "callbacks": lambda engine: (engine._callbacks, "call", 4),
    "save": lambda engine: (engine.checkpointer, "save", 1),
    "write in the background": lambda engine: (engine.checkpointer, "_write", 1),
}


@pytest.mark.parametrize("moment", list(MOMENTS))
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_run_that_is_killed_in_an_event_repeats_it_once(run, moment, before):
    engine = run.start()
    kill_in(*MOMENTS[moment](engine), before=before)
    with pytest.raises(Killed):
        engine.train(lambda: False)
    engine.checkpointer.wait()
    killed_at = engine.step
    engine = run.start()
    state = finish(engine)
    line = f"Continuing from step {killed_at} (memory of worker-0), no completed step lost."
    assert line in lines_of(run.messages)
    run_dir, variables = straight()
    assert log(run.run_dir) == log(run_dir)
    assert engine.checkpointer.steps() == [4, 8]
    assert engine.checkpointer.metrics(4).keys() == {"loss", "accuracy"}
    assert_same_bits(state, variables)


def test_numbers_that_tensorflow_keeps_do_not_pile_up(run):
    engine = run.start()
    numbers = itertools.count(10_000)

    def decide(times):
        for _ in range(times):
            for number in itertools.islice(numbers, 1000):
                tf.constant(number, tf.int64)
            engine.agree(False, False)

    decide(5)
    before = resident_bytes(os.getpid())
    decide(40)
    assert resident_bytes(os.getpid()) - before < 10_000_000  # 29 MB are made


def test_stop_after_a_restart_does_not_save_again_what_a_checkpoint_has(run):
    engine = run.start()
    kill_in(engine, "_advance", 4, before=True)  # from step 4, where three events have ended
    with pytest.raises(Killed):
        engine.train(lambda: False)
    engine = run.start()
    assert not engine.train(lambda: True)
    assert engine.step == 4
    assert engine.checkpointer.metrics(4).keys() == {"loss", "accuracy"}  # still one of the best


def poisoned(step):
    """Return overrides that make the loss of a step NaN, and roll back."""
    example = int(SampleOrder(1437, 0).locate(tf.constant([16 * step], tf.int64))[1][0])
    return (
        "dataset._target_=tests.support.toy_datasets.poisoned", f"+dataset.ids=[{example}]",
        "divergence.action=rollback", "checkpoint.every_steps=2",
    )  # fmt: skip


@pytest.mark.parametrize("method", ["_go_back", "_leave_out"])
def test_rollback_is_never_undone_by_a_state_in_memory(run, tmp_path, method):
    engine = run.start(*poisoned(5))
    kill_in(engine, method, 1, before=True)
    with pytest.raises(Killed):
        engine.train(lambda: False)
    assert (run.memory.newest() is None) == (method == "_leave_out")
    state = finish(run.start(*poisoned(5)))
    assert_same_bits(state, finish(recipe(tmp_path / "straight", *RUN, *poisoned(5))))


def test_rollback_restores_in_a_phase_that_may_take_long(run, monkeypatch):
    engine = run.start(*poisoned(5))
    restored_in = []
    restore = engine.checkpointer.restore
    monkeypatch.setattr(
        engine.checkpointer,
        "restore",
        lambda step: restored_in.append(run.phase()) or restore(step),
    )
    engine.train(lambda: False)
    assert restored_in == ["compile"]


def test_checkpoint_in_the_background_is_committed_though_closing_fails(run, monkeypatch):
    engine = run.start("checkpoint.async_write=true", "train.steps_per_loop=1")
    checkpointer = engine.checkpointer
    is_awaited = threading.Event()
    monkeypatch.setattr(checkpointer, "before_commit", lambda: is_awaited.wait(60))
    wait = checkpointer.wait
    during = []

    def wait_and_release():
        during.append(run.phase())
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
