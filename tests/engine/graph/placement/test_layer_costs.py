"""Costs of layers against the formulas of the literature, and cuts against all that exist."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.placement import layer_costs


def test_flops_of_layers_are_those_of_their_formulas():
    inputs = tf.keras.Input([8, 8, 3])
    x = tf.keras.layers.Conv2D(4, 3, padding="same", use_bias=False, name="conv")(inputs)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(10, use_bias=False, name="dense")(x))
    conv, flatten, dense = (model.get_layer(name) for name in ("conv", "flatten", "dense"))
    assert layer_costs.forward_flops(conv) == 2 * 8 * 8 * 4 * 3 * 3 * 3
    assert layer_costs.forward_flops(dense) == 2 * 256 * 10
    assert layer_costs.forward_flops(flatten) == 0
    assert layer_costs.output_size(conv) == 8 * 8 * 4


@pytest.mark.parametrize("count", [2, 3, 4])
def test_partition_is_the_best_of_all(count):
    random = np.random.default_rng(count)
    for _ in range(20):
        costs = random.integers(1, 20, 9).tolist()
        sizes = random.integers(1, 20, 9).tolist()

        def value(cuts, costs=costs, sizes=sizes):
            ends = [0, *cuts, len(costs)]
            worst = max(sum(costs[start:end]) for start, end in pairwise(ends))
            return worst, sum(sizes[cut - 1] for cut in cuts)

        stages = layer_costs.partition(costs, sizes, count)
        own = [i for i in range(1, 9) if stages[i] != stages[i - 1]]
        assert sorted(set(stages)) == list(range(count))
        assert value(own) == min(map(value, combinations(range(1, 9), count - 1)))


def test_activation_stays_with_its_layer():
    # convolution, activation, pooling, twice: the smaller output of the pooling is passed on
    assert layer_costs.partition([5, 0, 0, 5, 0, 0], [8, 8, 2, 4, 4, 1], 2) == [0, 0, 0, 1, 1, 1]
    assert layer_costs.partition([5, 0, 5, 0], [8, 8, 4, 4], 2) == [0, 0, 1, 1]
