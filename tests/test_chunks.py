"""Steps that are handed out in chunks: each is counted once, its sums too, however often a chunk had to be run.

The workers are this very process, one after the other, so that results can be compared to the bit.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests import training
from tests.training import assert_same_bits
from trainer import build
from trainer.channel import Channel
from trainer.chunks import Workers
from trainer.cli import compose
from trainer.cluster import Cluster, Task
from trainer.datasets.digits import digits
from trainer.strategies.base import Strategy

OPTIONS = (
    "train.steps=20",
    "evaluate.every_steps=7",
    "summary.every_steps=5",
    "train.ema_decay=0.9",
    "train.clip_norm=1.0",
    *training.RANDOM,
)


class InTurn(Strategy):
    """Hands steps out to this process."""

    asynchronous = True

    def __init__(self, *, device=None):
        pass

    def start(self, cluster):
        return tf.distribute.OneDeviceStrategy("CPU:0")


class Coordinator:
    """Runs chunks at once. Those in `lost` are begun before by a worker that dies in the middle of them."""

    def __init__(self, strategy):
        self.sent, self.scheduled, self.lost = 0, [], set()

    def create_per_worker_dataset(self, make):
        self.sent += 1
        return make()

    def schedule(self, chunk, args):
        if len(self.scheduled) in self.lost:
            chunk(*args[:-1], args[-1] // 2)
        self.scheduled.append([int(arg) for arg in args[1:]])
        chunk(*args)

    def join(self):
        pass


def files(**options):
    """Digits, as if they had to be read."""
    made = digits(**options)
    for split in (made.train, made.test):
        split.resident = False
    return made


@pytest.fixture(autouse=True)
def coordinator(monkeypatch):
    made = []

    def make(strategy):
        made.append(Coordinator(strategy))
        return made[-1]

    monkeypatch.setattr(tf.distribute.coordinator, "ClusterCoordinator", make)
    monkeypatch.setattr(tf.distribute.coordinator, "experimental_get_current_worker_index", lambda: tf.constant(0))
    return made


def engine(run_dir, *overrides):
    run_dir.mkdir()
    jobs = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}
    target = ["strategy=one_device", f"strategy._target_={__name__}.InTurn"]
    experiment = compose([*training.SMALL, *OPTIONS, *target, *overrides])
    return build.engine(experiment, run_dir, Channel(lambda message: None), Cluster(Task("chief", 0), jobs))


def board(made):
    """Gives a board with a row for each chunk, and a tf.function that writes what it was asked for."""
    found = made.board(2)

    @tf.function(autograph=False)
    def chunk(opened, row, start, count):
        found.write(row, tf.cast(tf.stack([start, count]), tf.float64))

    return found, chunk


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize(("secs", "most"), [(0.0, 3), (0.2, 3), (0.31, 6), (100.0, 12)])
def test_a_call_is_divided_into_even_chunks_that_are_long_enough(coordinator, count, secs, most):
    workers = Workers(tf.distribute.get_strategy(), 3)
    found, chunk = board(workers)
    found.step_secs = secs / count
    pieces = workers.run(chunk, (), found, 50, count)
    assert [step for first, size, _ in pieces for step in range(first, first + size)] == list(range(50, 50 + count))
    assert [(first, size) for first, size, _ in pieces] == [tuple(values) for _, _, values in pieces]
    sizes = [size for _, size, _ in pieces]
    assert len(sizes) == min(count, most)
    assert max(sizes) - min(sizes) <= 1
    assert [row for row, _, _ in coordinator[0].scheduled] == list(range(len(sizes)))


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param("trainer.datasets.digits.digits", id="in memory", marks=pytest.mark.slow),
        pytest.param(f"{__name__}.files", id="read"),
    ],
)
def test_training_in_chunks_one_after_the_other_gives_the_bits_of_training_in_one(tmp_path, coordinator, dataset):
    made = engine(tmp_path / "chunks", f"dataset._target_={dataset}")
    made.train(lambda: False)
    in_chunks, in_one = training.variables(made), training.train(tmp_path / "one", *OPTIONS)
    # Steps that are handed out have no order, and so no last norm.
    assert in_chunks.pop("/gradient_norm") == 0.0 < in_one.pop("/gradient_norm")
    assert_same_bits(in_chunks, in_one)
    assert len(coordinator[0].scheduled) > 5
    # Training and test data, each once, however often the test split was evaluated.
    assert coordinator[0].sent == 2


def test_a_chunk_of_a_lost_worker_is_run_again_counted_once_and_reported(tmp_path, coordinator):
    options = ("train.steps_per_loop=5", "evaluate.every_steps=20", "optimizer.learning_rate=1e-9")
    made = engine(tmp_path / "run", *options)
    made.train(lambda: False)
    sizes = [size for _, _, size in coordinator[0].scheduled]
    evaluation = next(number for number in range(len(sizes)) if sum(sizes[:number]) == 20)
    again = engine(tmp_path / "again", *options)
    coordinator[1].lost = {1, 3, *range(evaluation, len(sizes))}
    again.train(lambda: False)
    repeated = sizes[1] // 2 + sizes[3] // 2
    assert repeated > 0
    assert again.step == 20
    assert again.loop.report()["steps_repeated"] == repeated
    assert list(again.loop.last_lines()) == [f"{repeated} steps were begun a second time, because the worker that ran them was lost."]
    assert list(made.loop.last_lines()) == []
    # Sums and weights of 20 steps, no more; the losses hardly differ at this learning rate.
    for name in ("/window", "/epoch"):
        np.testing.assert_allclose(training.variables(again)[name], training.variables(made)[name], rtol=1e-3)
    assert again.result()["metrics"] == pytest.approx(made.result()["metrics"], rel=1e-3)


def test_the_log_tells_the_rate_of_each_worker_and_how_old_gradients_are(tmp_path, coordinator):
    made = engine(tmp_path / "run")
    made.train(lambda: False)
    report = made.loop.report()
    assert report["worker_0_steps_per_sec"] > 0
    assert report["worker_1_steps_per_sec"] == 0
    assert (report["staleness_mean"], report["staleness_max"], report["steps_repeated"]) == (0, 0, 0)


def test_steps_that_others_begin_in_between_are_staleness(tmp_path, coordinator, monkeypatch):
    made = engine(tmp_path / "run", "train.steps=4", "train.steps_per_loop=4")
    step = made.loop._step

    def beside_others(index, taken):
        # At step 1 two others, at step 2 one.
        with tf.control_dependencies([made.loop._begun.assign_add(tf.gather(tf.constant([0, 2, 1, 0], tf.int64), index))]):
            index = tf.identity(index)
        return step(index, taken)

    monkeypatch.setattr(made.loop, "_step", beside_others)
    made.train(lambda: False)
    assert (made.loop.report()["staleness_mean"], made.loop.report()["staleness_max"]) == (0.75, 2)
