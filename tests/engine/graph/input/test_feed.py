"""The order of samples: a function of (seed, position), for any replicas and any feed."""

import dataclasses
import time

import numpy as np
import pytest
import tensorflow as tf

from trainer.datasets.splits.arrays import ArraySplit
from trainer.engine.graph.input.feed import InGraph, Pipeline, SampleOrder, Source, feed

N = 23
FEATURES = np.arange(N * 2, dtype=np.uint8).reshape(N, 2)


def split(num_examples=N):
    return ArraySplit(FEATURES[:num_examples], np.arange(num_examples) % 10)


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


def train_source(per_replica, replicas=1, seed=0, num_examples=N, num_draws=0):
    return Source(
        split(num_examples), per_replica, replicas, SampleOrder(num_examples, seed), num_draws
    )


def step_of(source, step):
    """Return the batch and the draws of all replicas of a step, one after the other."""
    parts = [
        source.assemble(tf.constant(step, tf.int64), tf.constant(replica))
        for replica in range(source.num_replicas)
    ]
    return tf.nest.map_structure(lambda *xs: np.concatenate([x.numpy() for x in xs]), *parts)


def ids(source, steps):
    return [step_of(source, step)[0]["id"].tolist() for step in steps]


def epoch_of(num_examples, seed, epoch):
    positions = tf.range(epoch * num_examples, (epoch + 1) * num_examples, dtype=tf.int64)
    epochs, indices = SampleOrder(num_examples, seed).locate(positions)
    assert set(epochs.numpy()) == {epoch}
    return indices.numpy().tolist()


@pytest.mark.parametrize(("num_examples", "epoch"), [(1, 0), (3, 1), (1437, 1_000_000)])
def test_each_epoch_is_a_permutation(num_examples, epoch):
    assert sorted(epoch_of(num_examples, 0, epoch)) == list(range(num_examples))


def test_every_epoch_and_seed_has_another_order():
    orders = [tuple(epoch_of(100, seed, epoch)) for seed in (0, 1, 2**53 - 1) for epoch in range(5)]
    assert len(set(orders)) == len(orders)
    assert epoch_of(100, 0, 3) == epoch_of(100, 0, 3)


@pytest.mark.parametrize("seed", [0, 5])
def test_samples_of_step_do_not_depend_on_number_of_replicas(seed):
    one, two, four = (
        ids(train_source(8 // replicas, replicas, seed), range(12)) for replicas in (1, 2, 4)
    )
    assert one == two == four


def test_draws_and_contents_do_not_depend_on_number_of_replicas():
    one, four = (
        step_of(train_source(8 // replicas, replicas, num_draws=3), 2) for replicas in (1, 4)
    )
    assert one[1].shape == (8, 3)
    assert one[1].tobytes() == four[1].tobytes()
    for key in one[0]:
        assert one[0][key].tobytes() == four[0][key].tobytes()
    assert one[0].keys() == {"features", "label", "id", "weight"}
    np.testing.assert_array_equal(one[0]["features"], FEATURES[one[0]["id"]])
    np.testing.assert_array_equal(one[0]["label"], one[0]["id"] % 10)
    assert one[0]["weight"].tolist() == [1.0] * 8


@pytest.mark.parametrize("global_size", [5, 16])
def test_every_example_once_an_epoch_also_if_a_batch_straddles_two(global_size):
    stream = np.concatenate(ids(train_source(global_size), range(-(-3 * N // global_size))))
    for epoch in range(3):
        assert sorted(stream[epoch * N : (epoch + 1) * N]) == list(range(N))


def test_batch_larger_than_dataset_takes_each_example_as_often():
    source = train_source(12, 1, num_examples=4)
    for step in range(3):
        assert sorted(ids(source, [step])[0]) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [sorted(part) for part in np.split(np.array(ids(source, [0])[0]), 3)] == [
        [0, 1, 2, 3]
    ] * 3


@pytest.mark.parametrize(("per_replica", "replicas"), [(5, 2), (23, 1), (30, 2)])
def test_evaluation_counts_each_example_once_at_a_static_shape(per_replica, replicas):
    source = Source(split(), per_replica, replicas)
    assert source.num_steps == -(-N // (per_replica * replicas))
    batches = [step_of(source, step)[0] for step in range(source.num_steps)]
    assert all(len(batch["id"]) == per_replica * replicas for batch in batches)
    found, weight = (np.concatenate([batch[key] for batch in batches]) for key in ("id", "weight"))
    assert found[weight == 1].tolist() == list(range(N))
    assert set(weight) <= {0.0, 1.0}
    assert set(found[weight == 0]) <= {0}
    signature = tf.function(source.assemble).get_concrete_function(
        tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32)
    )
    batch, draws = signature.structured_outputs
    assert batch["features"].shape == (per_replica, 2)
    assert batch["weight"].shape == batch["id"].shape == (per_replica,)
    assert draws.shape == (per_replica, 0)


def test_weights_of_a_split_are_kept():
    batch = step_of(Source(Weighted(), 10, 1), 2)[0]
    assert batch["id"].tolist() == [20, 21, 22, *[0] * 7]
    assert batch["weight"].tolist() == [1.0, 0.0, 1.0, *[0.0] * 7]
    assert batch["weight"].dtype == np.float32
    trained = step_of(Source(Weighted(), 10, 1, SampleOrder(N, 0)), 0)[0]
    assert trained["weight"].tolist() == [float(number % 3 != 0) for number in trained["id"]]


STRATEGIES = {
    "one device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
    ),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


def batches_of(fed, strategy, start, count):
    """Return each step's batch over all replicas, and the draws, as a compiled loop does."""

    @tf.function
    def next_batch(iterator, step):
        element = fed.next(iterator)

        def replica_step(step, element):
            return fed.replica_batch(
                element, step, tf.distribute.get_replica_context().replica_id_in_sync_group
            )

        return tf.nest.map_structure(
            lambda x: tf.concat(strategy.experimental_local_results(x), axis=0),
            strategy.run(replica_step, args=(step, element)),
        )

    iterator = fed.open(start)
    return [
        tf.nest.map_structure(
            lambda x: x.numpy(), next_batch(iterator, tf.constant(step, tf.int64))
        )
        for step in range(start, start + count)
    ]


def test_split_in_memory_is_gathered_in_graph_and_others_are_prefetched(strategy):
    assert isinstance(feed(Source(split(), 4, 1), strategy), InGraph)
    assert isinstance(feed(Source(FromFiles(split()), 4, 1), strategy), Pipeline)


def test_both_feeds_give_the_same_batches(strategy):
    start = 1000
    replicas = strategy.num_replicas_in_sync
    in_memory = train_source(8 // replicas, replicas, seed=1, num_draws=2)
    read = dataclasses.replace(in_memory, split=FromFiles(in_memory.split))
    in_graph, piped = (
        batches_of(feed(source, strategy), strategy, start, 4) for source in (in_memory, read)
    )
    for number, (a, b) in enumerate(zip(in_graph, piped, strict=True)):
        expected, draws = step_of(in_memory, start + number)
        for got, got_draws in (a, b):
            assert got.keys() == expected.keys()
            assert all(got[key].tobytes() == expected[key].tobytes() for key in expected)
            assert got_draws.tobytes() == draws.tobytes()


class Counted:
    """Examples that are read; it counts the batches."""

    in_memory, num_examples = False, 1000

    def __init__(self):
        self.count = 0

    def fetch(self, indices):
        features = tf.numpy_function(self._read, [indices], tf.int64)
        return {"features": tf.ensure_shape(features, indices.shape)}

    def _read(self, indices):
        self.count += 1
        return indices


@pytest.mark.parametrize("devices", [["CPU:1"], ["CPU:1", "CPU:2"]])
def test_read_batches_are_on_their_device_ahead_of_the_step(devices):
    one = len(devices) == 1
    strategy = (
        tf.distribute.OneDeviceStrategy(devices[0])
        if one
        else tf.distribute.MirroredStrategy(devices)
    )
    replicas = len(devices)
    reader = Counted()
    fed = feed(Source(reader, 4, replicas, SampleOrder(1000, 0)), strategy)
    iterator = fed.open(0)
    batch, _ = fed.next(iterator)
    found = [x.device[-5:] for x in strategy.experimental_local_results(batch["features"])]
    assert found == devices
    # One step is taken; two are prefetched and two batches being read on the host; of what was read
    # beyond that, one waits for each replica on the host, and one on its device.
    wanted = replicas + (2 * replicas + 2) + 2 * replicas
    deadline = time.monotonic() + 60
    while reader.count < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Augmenting:
    """Remembers the random numbers that it is given."""

    num_examples = N
    in_memory = True
    augments = True

    def fetch(self, indices, draws=None):
        return {"features": indices, "seen": tf.zeros([]) if draws is None else draws}


def test_split_that_augments_is_given_the_draws_in_training_alone():
    train = Source(Augmenting(), 4, 1, SampleOrder(N, 0), num_draws=3)
    batch, draws = train.assemble(tf.constant(1, tf.int64), tf.constant(0))
    assert draws.shape == (4, 3)
    np.testing.assert_array_equal(batch["seen"], draws)
    test, _ = Source(Augmenting(), 4, 1).assemble(tf.constant(1, tf.int64), tf.constant(0))
    assert test["seen"].shape == ()


def test_units_stay_together_and_all_of_a_split_keeps_its_order():
    positions = tf.range(24, dtype=tf.int64)
    epochs, indices = SampleOrder(12, 5, unit=4).locate(positions)
    assert epochs.numpy().tolist() == [0] * 12 + [1] * 12
    blocks = indices.numpy().reshape(2, 3, 4)
    assert (np.diff(blocks, axis=2) == 1).all()
    for starts in blocks[:, :, 0]:
        assert sorted(starts) == [0, 4, 8]
    assert blocks[0].tolist() != blocks[1].tolist()
    _, indices = SampleOrder(12, 5, unit=0).locate(positions)
    assert indices.numpy().tolist() == 2 * list(range(12))
