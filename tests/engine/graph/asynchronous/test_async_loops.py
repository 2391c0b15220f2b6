"""Steps that are handed out in chunks are counted once, however often a chunk is run.

The workers are this process, one after the other, so that results can be compared to the bit.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import training
from tests.support.training import assert_same_bits
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster, ProcessId
from trainer.datasets.digits import digits
from trainer.engine.graph.asynchronous.chunks import ChunkScheduler
from trainer.engine.graph.input.feed import SampleOrder
from trainer.errors import NonFiniteError
from trainer.strategies.strategy import Strategy
from trainer.worker.training import TrainingRun

OPTIONS = (
    "train.steps=20",
    "evaluate.every_steps=7",
    "summary.every_steps=5",
    "train.ema_decay=0.9",
    "train.clip_norm=1.0",
    *training.RANDOM,
)

ONE_CALL = ("train.steps_per_loop=20", "evaluate.every_steps=20", "summary.every_steps=20")


class InTurn(Strategy):
    """Hands out steps to this process."""

    asynchronous = True

    def __init__(self, *, device=None):
        pass

    def create(self, cluster):
        return tf.distribute.OneDeviceStrategy("CPU:0")


class Coordinator:
    """Runs chunks at once.

    Those in `lost` are begun before by a worker that dies in the middle of them.
    """

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
    """Return digits as if they had to be read."""
    dataset = digits(**options)
    for split in (dataset.train, dataset.test):
        split.in_memory = False
    return dataset


@pytest.fixture(autouse=True)
def coordinator(monkeypatch):
    """The coordinators of this test, in order."""
    coordinators = []

    def make(strategy):
        coordinators.append(Coordinator(strategy))
        return coordinators[-1]

    monkeypatch.setattr(tf.distribute.coordinator, "ClusterCoordinator", make)
    monkeypatch.setattr(
        tf.distribute.coordinator, "experimental_get_current_worker_index", lambda: tf.constant(0)
    )
    return coordinators


def engine(run_dir, *overrides):
    run_dir.mkdir()
    jobs = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}
    target = ["strategy=one_device", f"strategy._target_={__name__}.InTurn"]
    experiment = compose([*training.SMALL, *OPTIONS, *target, *overrides])
    return TrainingRun(
        experiment, run_dir, Channel(lambda message: None), Cluster(ProcessId("chief", 0), jobs)
    ).engine


def recording_chunk(scheduler):
    """Return a result buffer, and a chunk that writes its first step and number of steps there."""
    result_buffer = scheduler.result_buffer(2)

    @tf.function(autograph=False)
    def chunk(iterator, row, start, count):
        result_buffer.write(row, tf.cast(tf.stack([start, count]), tf.float64))

    return result_buffer, chunk


@pytest.mark.parametrize(
    ("secs", "most", "count"),
    [(0.0, 3, 1), (0.0, 3, 100), (0.2, 3, 8), (0.31, 6, 7), (100.0, 12, 9)],
)
def test_call_is_divided_into_even_chunks_that_are_long_enough(coordinator, count, secs, most):
    scheduler = ChunkScheduler(tf.distribute.get_strategy(), 3)
    result_buffer, chunk = recording_chunk(scheduler)
    result_buffer.step_secs = secs / count
    results = scheduler.run(chunk, (), result_buffer, 50, count)
    assert [step for x in results for step in range(x.start, x.start + x.count)] == list(
        range(50, 50 + count)
    )
    assert [(x.start, x.count) for x in results] == [tuple(x.values) for x in results]
    sizes = [x.count for x in results]
    assert len(sizes) == min(count, most)
    assert max(sizes) - min(sizes) <= 1
    assert [row for row, _, _ in coordinator[0].scheduled] == list(range(len(sizes)))


@pytest.mark.slow
def test_sequential_chunks_give_the_bits_of_one_call(tmp_path, coordinator):
    chief = engine(tmp_path / "chunks", f"dataset._target_={__name__}.files")
    chief.train(lambda: False)
    in_chunks, in_one = training.variables(chief), training.train(tmp_path / "one", *OPTIONS)
    # Steps that are handed out have no order, so there is no last norm.
    assert in_chunks.pop("/gradient_norm") == 0.0 < in_one.pop("/gradient_norm")
    assert_same_bits(in_chunks, in_one)
    assert len(coordinator[0].scheduled) > 5
    # Training and test data, each once, however often the test split was evaluated.
    assert coordinator[0].sent == 2


@pytest.mark.slow
def test_chunk_of_lost_worker_is_repeated_counted_once_and_reported(tmp_path, coordinator):
    options = ("train.steps_per_loop=5", "evaluate.every_steps=20", "optimizer.learning_rate=1e-9")
    chief = engine(tmp_path / "run", *options)
    chief.train(lambda: False)
    sizes = [size for _, _, size in coordinator[0].scheduled]
    evaluation = next(number for number in range(len(sizes)) if sum(sizes[:number]) == 20)
    again = engine(tmp_path / "again", *options)
    coordinator[1].lost = {1, 3, *range(evaluation, len(sizes))}
    again.train(lambda: False)
    repeated = sizes[1] // 2 + sizes[3] // 2
    assert repeated > 0
    assert again.step == 20
    assert again.loop.report()["steps_repeated"] == repeated
    assert list(again.loop.last_lines()) == [
        f"{repeated} steps were begun a second time, because the worker that ran them was lost."
    ]
    assert list(chief.loop.last_lines()) == []
    # Sums and weights of 20 steps, no more; the losses hardly differ at this learning rate.
    for name in ("/window", "/epoch"):
        np.testing.assert_allclose(
            training.variables(again)[name], training.variables(chief)[name], rtol=1e-3
        )
    assert again.result()["metrics"] == pytest.approx(chief.result()["metrics"], rel=1e-3)


@pytest.mark.slow
def test_staleness_counts_steps_that_others_begin_meanwhile(tmp_path, coordinator, monkeypatch):
    chief = engine(tmp_path / "run", "train.steps=4", "train.steps_per_loop=4")
    step = chief.loop._step

    def beside_others(index, element):
        # At step 1 two others, at step 2 one.
        with tf.control_dependencies(
            [chief.loop._begun.assign_add(tf.gather(tf.constant([0, 2, 1, 0], tf.int64), index))]
        ):
            index = tf.identity(index)
        return step(index, element)

    monkeypatch.setattr(chief.loop, "_step", beside_others)
    monkeypatch.setattr(chief.loop, "check", lambda subject: None)  # of what the test reads
    chief.train(lambda: False)
    assert (chief.loop.report()["staleness_mean"], chief.loop.report()["staleness_max"]) == (
        0.75,
        2,
    )


@pytest.mark.slow
def test_bad_gradient_in_the_last_step_of_a_call_is_never_saved(tmp_path, coordinator):
    # The loss is finite: it is that of before the update, and the regularization's is no part.
    chief = engine(tmp_path / "run", "model.l2=1e30", "train.steps=1", "checkpoint.every_steps=1")
    message = r"^the norm of the gradient became inf after 0 steps; try a smaller optimizer"
    with pytest.raises(NonFiniteError, match=message):
        chief.train(lambda: False)
    assert coordinator[0].scheduled == [[0, 0, 1]]
    assert chief.checkpointer.steps() == []


@pytest.mark.slow
def test_first_bad_step_of_all_chunks_is_named(tmp_path, coordinator):
    order = SampleOrder(1437, 0)
    ids = [int(order.locate(tf.constant([16 * step], tf.int64))[1][0]) for step in (13, 9)]
    poison = ["dataset._target_=tests.support.toy_datasets.poisoned", f"+dataset.ids={ids}"]
    chief = engine(tmp_path / "run", *(x.replace(" ", "") for x in poison), *ONE_CALL)
    with pytest.raises(NonFiniteError, match=r"^the loss became nan after 9 steps; "):
        chief.train(lambda: False)
    assert len(coordinator[0].scheduled) == 2
