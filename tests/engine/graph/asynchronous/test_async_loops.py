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
from trainer.engine.graph.asynchronous.async_loops import Chunks, ChunkScheduler
from trainer.engine.graph.input.feed import SampleOrder
from trainer.errors import NonFiniteError
from trainer.strategies.strategy import Strategy
from trainer.worker.training import TrainingRun

OPTIONS = (
    "train.steps=20", "evaluate.every_steps=7", "summary.every_steps=5", "train.ema_decay=0.9",
    "train.clip_norm=1.0", *training.RANDOM,
)  # fmt: skip
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
def coordinators(monkeypatch):
    """The coordinators of this test, in order."""
    made = []
    kinds = tf.distribute.coordinator
    monkeypatch.setattr(
        kinds, "ClusterCoordinator", lambda x: made.append(Coordinator(x)) or made[-1]
    )
    monkeypatch.setattr(kinds, "experimental_get_current_worker_index", lambda: tf.constant(0))
    return made


def engine(run_dir, *overrides):
    run_dir.mkdir(exist_ok=True)
    jobs = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}
    target = ["strategy=one_device", f"strategy._target_={__name__}.InTurn"]
    experiment = compose([*training.SMALL, *OPTIONS, *target, *overrides])
    return TrainingRun(
        experiment, run_dir, Channel(lambda message: None), Cluster(ProcessId("chief", 0), jobs)
    ).engine


@pytest.mark.parametrize(
    ("secs", "most", "count"),
    [(0.0, 3, 1), (0.0, 3, 100), (0.2, 3, 8), (0.31, 6, 7), (100.0, 12, 9)],
)
def test_call_is_divided_into_even_chunks_that_are_long_enough(coordinators, count, secs, most):
    chunks = Chunks(ChunkScheduler(tf.distribute.get_strategy(), 3), 2)

    @tf.function(autograph=False)
    def chunk(iterator, row, start, count):
        chunks.write(row, tf.cast(tf.stack([start, count]), tf.float64))

    chunks.step_secs = secs / count
    results = chunks.run(chunk, (), 50, count)
    made = [step for x in results for step in range(x.start, x.start + x.count)]
    assert made == list(range(50, 50 + count))
    assert [(x.start, x.count) for x in results] == [tuple(x.values) for x in results]
    sizes = [x.count for x in results]
    assert len(sizes) == min(count, most)
    assert max(sizes) - min(sizes) <= 1
    assert [row for row, _, _ in coordinators[0].scheduled] == list(range(len(sizes)))


@pytest.mark.slow
def test_sequential_chunks_give_the_bits_of_one_call(tmp_path, coordinators):
    chief = engine(tmp_path / "chunks", f"dataset._target_={__name__}.files")
    chief.train(lambda: False)
    in_chunks, in_one = training.variables(chief), training.train(tmp_path / "one", *OPTIONS)
    # Steps that are handed out have no order, so there is no last norm.
    assert in_chunks.pop("/gradient_norm") == 0.0 < in_one.pop("/gradient_norm")
    assert_same_bits(in_chunks, in_one)
    assert len(coordinators[0].scheduled) > 5
    # Training and test data, each once, however often the test split was evaluated.
    assert coordinators[0].sent == 2


@pytest.mark.slow
def test_chunk_of_lost_worker_is_repeated_counted_once_and_reported(tmp_path, coordinators):
    options = ("train.steps_per_loop=5", "evaluate.every_steps=20", "optimizer.learning_rate=1e-9")
    chief = engine(tmp_path / "run", *options)
    chief.train(lambda: False)
    sizes = [size for _, _, size in coordinators[0].scheduled]
    evaluation = next(number for number in range(len(sizes)) if sum(sizes[:number]) == 20)
    again = engine(tmp_path / "again", *options)
    coordinators[1].lost = {1, 3, *range(evaluation, len(sizes))}
    again.train(lambda: False)
    repeated = sizes[1] // 2 + sizes[3] // 2
    assert repeated > 0
    assert again.step == 20
    assert again.loop.report()["steps_repeated"] == repeated
    (line,) = again.loop.last_lines()
    assert line.startswith(f"{repeated} steps were begun a second time")
    assert list(chief.loop.last_lines()) == []
    # Sums and weights of 20 steps, no more; the losses hardly differ at this learning rate.
    for name in ("/window", "/epoch"):
        np.testing.assert_allclose(
            training.variables(again)[name], training.variables(chief)[name], rtol=1e-3
        )
    assert again.result()["metrics"] == pytest.approx(chief.result()["metrics"], rel=1e-3)


@pytest.mark.slow
def test_bad_gradient_in_the_last_step_of_a_call_is_never_saved(tmp_path, coordinators):
    # The loss is finite: it is that of before the update, and the regularization's is no part.
    chief = engine(tmp_path, "model.l2=1e30", "train.steps=1", "checkpoint.every_steps=1")
    with pytest.raises(NonFiniteError, match=r"^the norm of the gradient became inf after 0 steps"):
        chief.train(lambda: False)
    assert coordinators[0].scheduled == [[0, 0, 1]]
    assert chief.checkpointer.steps() == []


@pytest.mark.slow
def test_first_bad_step_of_all_chunks_is_named(tmp_path, coordinators):
    order = SampleOrder(1437, 0)
    ids = [int(order.locate(tf.constant([16 * step], tf.int64))[1][0]) for step in (13, 9)]
    poison = ["dataset._target_=tests.support.toy_datasets.poisoned", f"+dataset.ids={ids}"]
    chief = engine(tmp_path / "run", *(x.replace(" ", "") for x in poison), *ONE_CALL)
    with pytest.raises(NonFiniteError, match=r"^the loss became nan after 9 steps; "):
        chief.train(lambda: False)
    assert len(coordinators[0].scheduled) == 2
