"""The shards of a batch: cut it into equal parts, and compute each in a shape of its own.

How a kernel rounds may depend on the size of its tensor: vectorized functions compute the last
numbers of a tensor, which fill no vector, by other instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from trainer.engine.graph.randomness import randomness
from trainer.protocols import Batch

Nest = TypeVar("Nest")


def cut(batch: Nest, parts: int) -> Callable[[int | tf.Tensor], Nest]:
    """Cut a nest of tensors, [B, ...], into equal parts; return a function that returns one."""
    if parts == 1:
        return lambda part: batch
    stacked = tf.nest.map_structure(
        lambda x: tf.reshape(x, [parts, x.shape[0] // parts, *x.shape[1:]]), batch
    )
    return lambda part: tf.nest.map_structure(lambda x: x[part], stacked)


def transform_shards(
    transform: Callable[[Batch, tf.Tensor], Batch], batch: Batch, draws: tf.Tensor, count: int
) -> Batch:
    """Apply a dataset's transform to each of `count` shards of a replica's batch.

    Args:
        batch: name -> [B, ...].
        draws: [B, num_draws] float32.

    Returns:
        What the transform returns, of all shards, name -> [B, ...].
    """
    return of_each_shard(lambda shard: dict(transform(*shard)), (batch, draws), count)


def of_each_shard(fn: Callable[[Nest], Any], batch: Nest, count: int) -> Any:
    """Return what a function makes of each of `count` shards of a batch, concatenated.

    A loop in the graph, because side by side TensorFlow's optimizer would join them again: it moves
    elementwise operations behind the concatenation of their results.

    Args:
        fn: returns a nest of tensors, [b, ...], of a shard.
        batch: a nest of tensors, [B, ...].
    """
    if count == 1:
        return fn(batch)
    shard = cut(batch, count)
    enter = randomness.split_part(count)

    def one_shard(number: tf.Tensor) -> Any:
        with enter(number):
            return fn(shard(number))

    # What it returns must be known before the loop: a function is traced first, and only once.
    traced = tf.function(one_shard, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int32)
    )
    signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, traced.structured_outputs)
    stacked = tf.map_fn(traced, tf.range(count), fn_output_signature=signature)
    return tf.nest.map_structure(
        lambda value: tf.reshape(value, [count * value.shape[1], *value.shape[2:]]), stacked
    )
