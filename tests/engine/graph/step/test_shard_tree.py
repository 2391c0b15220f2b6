"""Shards: each in its own shape, and sums in one tree, in and outside a graph, on any replicas."""

import functools
import operator

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import mirrored
from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, current_part
from trainer.engine.graph.step.accumulation import of_each_shard, sum_over_shards
from trainer.engine.graph.step.shard_tree import TreeExchange, tree_sum

VALUES = np.random.RandomState(0).lognormal(sigma=4, size=(24, 50)).astype(np.float32)
"""So different in size that every order of addition gives other bits."""


def expression(count):
    return tree_sum([str(number) for number in range(count)], lambda a, b: f"({a}+{b})")


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "0"), (3, "((0+1)+2)"), (4, "((0+1)+(2+3))"), (7, "(((0+1)+(2+3))+((4+5)+6))")],
)
def test_tree_adds_neighbors_first(count, expected):
    assert expression(count) == expected


@pytest.mark.parametrize("count", [6, 8, 12])
def test_replicas_with_a_power_of_two_of_shards_complete_the_same_tree(count):
    shards = [str(number) for number in range(count)]

    def add(a, b):
        return f"({a}+{b})"

    size = 1
    while count % size == 0:
        replicas = [tree_sum(shards[i : i + size], add) for i in range(0, count, size)]
        assert tree_sum(replicas, add) == expression(count)
        size *= 2


@pytest.mark.parametrize("count", [1, 4, 7, 12])
def test_loop_in_the_graph_adds_in_the_order_of_the_tree(count):
    values = tf.constant(VALUES)
    traced = []

    @tf.function(autograph=False)
    def total():
        def compute(number):
            traced.append(number)
            row = values[number]
            return [row, tf.stack([row[0], row[1]])]

        specs = [tf.TensorSpec([50]), tf.TensorSpec([None])]
        return sum_over_shards(compute, count, specs)

    first, second = total()
    expected = tree_sum(list(VALUES[:count]), np.add)
    assert first.numpy().tobytes() == expected.tobytes()
    assert second.numpy().tobytes() == expected[:2].tobytes()
    assert len(traced) == 1
    if count > 3:
        in_order = functools.reduce(operator.add, VALUES[:count])
        assert expected.tobytes() != in_order.tobytes(), "the values do not tell orders apart"


def test_minus_zero_stays():
    @tf.function(autograph=False)
    def total():
        return sum_over_shards(lambda number: [tf.constant([-0.0])], 4, [tf.TensorSpec([1])])

    assert np.signbit(total()[0].numpy()[0])


@pytest.mark.parametrize("replicas", [1, 4])
def test_exchange_adds_replicas_in_the_order_of_the_tree(replicas):
    strategy = mirrored(replicas)

    @tf.function(autograph=False)
    def run():
        def on_replica():
            context = tf.distribute.get_replica_context()
            own = tf.gather(tf.constant(VALUES), context.replica_id_in_sync_group)
            gradients, others = TreeExchange()(context, [own, own[:7]], [own[7]])
            return [tf.identity(total) for total in (*gradients, *others)]

        return [strategy.experimental_local_results(x) for x in strategy.run(on_replica)]

    expected = tree_sum(list(VALUES[:replicas]), np.add)
    for results, wanted in zip(run(), (expected, expected[:7], expected[7]), strict=True):
        assert len(results) == replicas
        for result in results:
            assert result.numpy().tobytes() == wanted.tobytes()


def test_each_shard_is_computed_in_a_shape_of_its_own_and_traced_once():
    features = np.random.RandomState(0).normal(size=(36, 7, 5)).astype(np.float32)
    shapes = []

    def transform(features):
        shapes.append((tuple(features.shape), current_part().size))
        waves = tf.exp(tf.sin(features * 7.3))
        return {"features": waves, "mean": tf.reduce_mean(waves, axis=[1, 2])}

    @tf.function(autograph=False)
    def whole(features, count):
        with batch_part(BatchPart(lambda: tf.zeros([2], tf.int64), 36, 0)):
            return of_each_shard(transform, features, count)

    for count in (4, 12):
        shapes.clear()
        result = whole(features, count)
        size = 36 // count
        assert shapes == [((size, 7, 5), size)]
        parts = [whole(features[i : i + size], 1) for i in range(0, 36, size)]
        for name, value in result.items():
            expected = np.concatenate([part[name] for part in parts])
            assert value.numpy().tobytes() == expected.tobytes()
            assert value.shape == expected.shape
