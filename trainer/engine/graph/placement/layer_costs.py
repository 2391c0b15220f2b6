"""What layers cost to compute, and how a row of them is cut into stages of about the same cost."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise

import tensorflow as tf
from tensorflow.python.framework.ops import get_stats_for_node_def
from tensorflow.python.profiler.internal import flops_registry  # noqa: F401 - fills the registry


def forward_flops(layer: tf.keras.layers.Layer) -> int:
    """Return the floating-point operations of a layer for one example; 0 without variables.

    As far as TensorFlow's registry knows them: convolutions, matrix products, pooling, and
    elementwise operations, of static shapes.
    """
    if not layer.weights:
        return 0
    specs = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec([size or 1 for size in tensor.shape], tensor.dtype),
        layer.get_input_at(0),
    )
    traced = tf.function(lambda inputs: layer(inputs), autograph=False)
    graph = traced.get_concrete_function(specs).graph
    total = 0
    for operation in graph.get_operations():
        with suppress(ValueError, AttributeError):  # a shape is not known
            total += int(get_stats_for_node_def(graph, operation.node_def, "flops").value or 0)
    return total


def output_size(layer: tf.keras.layers.Layer) -> int:
    """Return the number of values in a layer's output for one example."""
    outputs = tf.nest.flatten(layer.get_output_at(0))
    return sum(math.prod(size or 1 for size in tensor.shape[1:]) for tensor in outputs)


def partition(costs: Sequence[int], sizes: Sequence[int], count: int) -> list[int]:
    """Cut a row into `count` consecutive stages, none without cost.

    The most expensive stage costs as little as possible; of all such cuts it is the one that passes
    the smallest outputs between stages, and then the last one: an activation stays with its layer,
    with which TensorFlow may fuse it. By dynamic programming.

    Args:
        costs: cost of each item.
        sizes: size of each item's output.
        count: number of stages, at most that of items that cost something.

    Returns:
        The stage of each item, ascending from 0.
    """
    sums = [0, *accumulate(costs)]

    def cost(start: int, end: int) -> float:
        return sums[end] - sums[start] or math.inf

    limit, _ = _best_cut(len(costs), count, cost, max)

    def passed(start: int, end: int) -> float:
        if cost(start, end) > limit:
            return math.inf
        return sizes[start - 1] if start else 0

    _, ends = _best_cut(len(costs), count, passed, operator.add)
    return [
        stage for stage, (start, end) in enumerate(pairwise([0, *ends])) for _ in range(start, end)
    ]


def _best_cut(
    length: int,
    count: int,
    value: Callable[[int, int], float],
    combine: Callable[[float, float], float],
) -> tuple[float, tuple[int, ...]]:
    """Return the least combined value of `count` consecutive stages, and where they end.

    Args:
        length: number of items.
        count: number of stages.
        value: the value of a stage, from its start and end.
        combine: combines the values of two stages, or of a row of them and one more.
    """
    # Of the first items. Ends are negative, so that the least of equal values has the last ends.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for _ in range(count):
        best = {
            end: min(
                (combine(least, value(start, end)), (*ends, -end))
                for start, (least, ends) in best.items()
                if start < end
            )
            for end in range(min(best) + 1, length + 1)
        }
    least, ends = best[length]
    return least, tuple(-end for end in ends)
