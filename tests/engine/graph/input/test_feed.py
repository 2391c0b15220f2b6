"""The order of samples: a function of (seed, position), for any replicas and any feed."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import Layout
from tests.support.training import assert_same_bits
from trainer.datasets.fit_data import data_of_fit
from trainer.datasets.splits.arrays import ArraySplit
from trainer.engine.graph.input.feed import (
    InGraph,
    MixedOrder,
    Pipeline,
    SampleOrder,
    Source,
    StreamFeed,
    feed,
)

N = 23
FEATURES = np.arange(N * 2, dtype=np.uint8).reshape(N, 2)
SPLIT = ArraySplit(FEATURES, np.arange(N) % 10)


class FromFiles:
    """The same examples, as if they had to be read."""

    in_memory = False

    def __init__(self, inner):
        self.num_examples, self.fetch = inner.num_examples, inner.fetch


class Weighted:
    """Examples of which every third one must not count."""

    in_memory, num_examples = True, N

    def fetch(self, indices):
        return {"features": indices, "weight": tf.where(indices % 3 == 0, 0, 1)}


class Augmenting:
    """Remembers the random numbers that it is given."""

    in_memory, num_examples, augments = True, N, True

    def fetch(self, indices, draws=None):
        return {"features": indices, "seen": tf.zeros([]) if draws is None else draws}


def train_source(per_replica, replicas=1, seed=0, num_draws=0, split=SPLIT):
    return Source(split, per_replica, replicas, SampleOrder(N, seed), num_draws)


def step_of(source, step):
    """Return the batch and the draws of all replicas of a step, one after the other."""
    parts = [
        source.assemble(tf.constant(step, tf.int64), tf.constant(replica))
        for replica in range(source.num_replicas)
    ]
    return tf.nest.map_structure(lambda *xs: np.concatenate([x.numpy() for x in xs]), *parts)


def whole_step(source, step):
    batch, draws = step_of(source, step)
    return {**batch, "draws": draws}


def ids(source, steps):
    return [step_of(source, step)[0]["id"].tolist() for step in steps]


def locate(order, positions):
    epochs, indices = order.locate(tf.constant(positions, tf.int64))
    return epochs.numpy(), indices.numpy()


def epoch_of(num_examples, seed, epoch):
    positions = np.arange(epoch * num_examples, (epoch + 1) * num_examples)
    epochs, indices = locate(SampleOrder(num_examples, seed), positions)
    assert set(epochs) == {epoch}
    return indices.tolist()


@pytest.mark.parametrize(("num_examples", "epoch"), [(1, 0), (3, 1), (1437, 1_000_000)])
def test_each_epoch_is_a_permutation(num_examples, epoch):
    assert sorted(epoch_of(num_examples, 0, epoch)) == list(range(num_examples))


def test_every_epoch_and_seed_has_another_order():
    orders = [tuple(epoch_of(100, seed, epoch)) for seed in (0, 1, 2**53 - 1) for epoch in range(5)]
    assert len(set(orders)) == len(orders)
    assert epoch_of(100, 0, 3) == epoch_of(100, 0, 3)


def test_samples_contents_and_draws_do_not_depend_on_number_of_replicas():
    one, *others = (train_source(8 // count, count, seed=5, num_draws=3) for count in (1, 2, 4))
    for step in range(12):
        batch = whole_step(one, step)
        assert batch.keys() == {"features", "label", "id", "weight", "draws"}
        np.testing.assert_array_equal(batch["features"], FEATURES[batch["id"]])
        np.testing.assert_array_equal(batch["label"], batch["id"] % 10)
        assert (batch["weight"].tolist(), batch["draws"].shape) == ([1.0] * 8, (8, 3))
        for other in others:
            assert_same_bits(batch, whole_step(other, step))


@pytest.mark.parametrize("global_size", [5, 16, 60])
def test_every_example_once_an_epoch_also_if_a_batch_straddles_some(global_size):
    stream = np.concatenate(ids(train_source(global_size), range(-(-3 * N // global_size))))
    for epoch in range(3):
        assert sorted(stream[epoch * N : (epoch + 1) * N]) == list(range(N))


@pytest.mark.parametrize(("per_replica", "replicas"), [(5, 2), (23, 1), (30, 2)])
def test_evaluation_counts_each_example_once_at_a_static_shape(per_replica, replicas):
    source = Source(SPLIT, per_replica, replicas)
    assert source.num_steps == -(-N // (per_replica * replicas))
    batches = [step_of(source, step)[0] for step in range(source.num_steps)]
    assert all(len(batch["id"]) == per_replica * replicas for batch in batches)
    found, weight = (np.concatenate([batch[key] for batch in batches]) for key in ("id", "weight"))
    assert found[weight == 1].tolist() == list(range(N))
    assert set(weight) <= {0.0, 1.0}
    assert set(found[weight == 0]) <= {0}
    specs = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32)
    batch, draws = tf.function(source.assemble).get_concrete_function(*specs).structured_outputs
    assert batch["features"].shape == (per_replica, 2)
    assert batch["weight"].shape == batch["id"].shape == (per_replica,)
    assert draws.shape == (per_replica, 0)


def test_weights_of_a_split_are_kept():
    batch = step_of(Source(Weighted(), 10, 1), 2)[0]
    assert batch["id"].tolist() == [20, 21, 22, *[0] * 7]
    assert batch["weight"].tolist() == [1.0, 0.0, 1.0, *[0.0] * 7]
    assert batch["weight"].dtype == np.float32
    trained = step_of(train_source(10, split=Weighted()), 0)[0]
    assert trained["weight"].tolist() == [float(number % 3 != 0) for number in trained["id"]]


def test_split_that_augments_is_given_the_draws_in_training_alone():
    batch, draws = step_of(train_source(4, num_draws=3, split=Augmenting()), 1)
    assert draws.shape == (4, 3)
    np.testing.assert_array_equal(batch["seen"], draws)
    test, _ = Source(Augmenting(), 4, 1).assemble(tf.constant(1, tf.int64), tf.constant(0))
    assert test["seen"].shape == ()


def test_units_stay_together_and_all_of_a_split_keeps_its_order():
    epochs, indices = locate(SampleOrder(12, 5, unit=4), np.arange(24))
    assert epochs.tolist() == [0] * 12 + [1] * 12
    blocks = indices.reshape(2, 3, 4)
    assert (np.diff(blocks, axis=2) == 1).all()
    for starts in blocks[:, :, 0]:
        assert sorted(starts) == [0, 4, 8]
    assert blocks[0].tolist() != blocks[1].tolist()
    assert locate(SampleOrder(12, 5, unit=0), np.arange(24))[1].tolist() == 2 * list(range(12))


def batches_of(fed, strategy, start, count):
    """Return each step's batch over all replicas, and the draws, as a compiled loop does."""

    def of_replica(step, element):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return fed.replica_batch(element, step, replica)

    @tf.function
    def next_batch(iterator, step):
        result = strategy.run(of_replica, args=(step, fed.next(iterator)))
        return tf.nest.map_structure(
            lambda x: tf.concat(strategy.experimental_local_results(x), axis=0), result
        )

    iterator = fed.open(start)
    steps = (tf.constant(step, tf.int64) for step in range(start, start + count))
    return [
        tf.nest.map_structure(lambda x: x.numpy(), next_batch(iterator, step)) for step in steps
    ]


@pytest.mark.parametrize("replicas", [1, 2])
def test_both_feeds_give_the_same_batches(replicas):
    strategy, start = Layout(replicas).strategy(), 1000
    in_memory = train_source(8 // replicas, replicas, seed=1, num_draws=2)
    read = dataclasses.replace(in_memory, split=FromFiles(in_memory.split))
    for source, kind in ((in_memory, InGraph), (read, Pipeline)):
        fed = feed(source, strategy)
        assert isinstance(fed, kind)
        for number, (batch, draws) in enumerate(batches_of(fed, strategy, start, 4)):
            expected = whole_step(in_memory, start + number)
            assert_same_bits(expected, {**batch, "draws": draws})


PARTS = ((10, 3), (4, 1), (7, 2))
STARTS = (0, 10, 14)


@pytest.mark.parametrize("seed", [0, 7])
def test_every_stretch_of_a_mixture_has_the_shares_and_every_epoch_each_example_once(seed):
    epochs, indices = locate(MixedOrder(21, seed, PARTS), np.arange(6 * 140))
    source = np.searchsorted(STARTS, indices, side="right") - 1
    for number, (size, share) in enumerate(PARTS):
        mine = source == number
        told = np.cumsum(mine) - np.arange(1, len(mine) + 1) * share / 6
        assert np.abs(told).max() <= 1.0  # of any stretch from the start
        own = indices[mine] - STARTS[number]
        assert len(own) == share * 140
        assert (epochs[mine] == np.arange(len(own)) // size).all()
        for first in range(0, len(own) - size, size):
            assert sorted(own[first : first + size]) == list(range(size))
        assert own[:size].tolist() != own[size : 2 * size].tolist()


def test_position_alone_decides_about_a_mixture():
    order = MixedOrder(21, 3, PARTS)
    positions = np.array([5, 0, 10**7, 5, 123456789012])
    alone = [locate(order, positions[i : i + 1]) for i in range(5)]
    np.testing.assert_array_equal(locate(order, positions), np.hstack(alone))
    other = locate(MixedOrder(21, 4, PARTS), np.arange(100))[1]
    assert locate(order, np.arange(100))[1].tolist() != other.tolist()
    _, indices = locate(MixedOrder(40, 0, ((20, 1), (20, 1))), np.arange(40))
    assert indices[::2].tolist() != (indices[1::2] - 20).tolist()  # sources of one size


class Numbers:
    """A stream of numbers, shuffled anew whenever it is made."""

    in_memory, num_examples = False, 10

    def stream(self):
        return tf.data.Dataset.range(10).shuffle(10).repeat().map(lambda i: {"features": i})


def batched():
    """Return batches of 12 numbers, the last of 6, of which each pass shuffles the whole."""
    numbers = tf.data.Dataset.range(30).shuffle(30).batch(12)
    return numbers.map(lambda i: {"x": tf.cast(i, tf.float32)})


def generated():
    """Yield such batches, without a seed."""
    order = np.random.permutation(30).astype(np.float32)
    for start in (0, 12, 24):
        yield {"x": order[start : start + 12]}


def streamed(split, replicas, step=0, count=3):
    """Return the features and the ids of some steps of 12 examples, over all replicas."""
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    order = SampleOrder(split.num_examples, 3)
    fed = StreamFeed(Source(split, 12 // replicas, replicas, order), strategy)
    iterator = fed.open(step)
    steps = []
    for _ in range(count):
        parts = map(strategy.experimental_local_results, tf.nest.flatten(fed.next(iterator)))
        steps.append([np.concatenate(part).tolist() for part in parts][:2])
    return [list(column) for column in zip(*steps, strict=True)]


@pytest.mark.parametrize(
    "split",
    [
        Numbers(),
        *(data_of_fit(data=x, num_examples=30, batched=True).train for x in (batched, generated)),
    ],
    ids=["examples", "batches", "generated batches"],
)
def test_stream_is_the_same_on_any_layout_and_from_any_step(split):
    size = split.num_examples
    whole, ids = streamed(split, 1, count=10)
    for replicas in (2, 4):
        assert streamed(split, replicas, step=4, count=6) == [whole[4:], ids[4:]]
    flat = np.concatenate(whole)
    for first in range(0, len(flat) - size + 1, size):
        assert sorted(flat[first : first + size]) == list(range(size))
    assert flat[:size].tolist() != flat[size : 2 * size].tolist()
    assert np.concatenate(ids).tolist() == [position % size for position in range(120)]
