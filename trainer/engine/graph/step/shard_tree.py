"""Sums over the shards of a global batch, in one fixed binary tree, independent of their devices.

With 6 shards the sum is ((0 + 1) + (2 + 3)) + (4 + 5): neighbors are added first, as a binary
counter carries. A replica that has a power of two of neighboring shards has a subtree, so the
bits of the sum do not depend on how many replicas there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeVar

import tensorflow as tf

from trainer.engine.graph.exchange.collectives import packed
from trainer.engine.graph.placement.step_devices import beside
from trainer.engine.graph.step.row_gradients import Gradient, add_rows

T = TypeVar("T")


def tree_sum(parts: Sequence[T], add_two: Callable[[T, T], T]) -> T:
    """Add up the parts in the order of the tree."""
    subtrees: list[T] = []
    for number, part in enumerate(parts):
        total = part
        for _ in range(carries(number)):
            total = add_two(subtrees.pop(), total)
        subtrees.append(total)
    total = subtrees.pop()
    while subtrees:
        total = add_two(subtrees.pop(), total)
    return total


def chain_sum(parts: Sequence[T], add_two: Callable[[T, T], T]) -> T:
    """Add up the parts from the first to the last."""
    return reduce(add_two, parts)


def add(left: Gradient, right: Gradient) -> Gradient:
    """Add two tensors in a graph that TensorFlow does not put into another order, or two in rows.

    Its optimizer makes one AddN of additions that feed each other, and AddN goes from left to
    right. A snapshot between them hides that, and copies nothing.
    """
    if isinstance(left, tf.IndexedSlices):
        return add_rows(left, right)
    return tf.raw_ops.Snapshot(input=left + right)


def add_all(left: list[Gradient], right: list[Gradient]) -> list[Gradient]:
    """Add tensors, or gradients in rows, in pairs, on the replica's device that holds the first.

    Their terms are hidden too: without a loop around it, TensorFlow's optimizer sees it.
    """

    def add_two(left: Gradient, right: Gradient) -> Gradient:
        with beside(left):
            if isinstance(left, tf.IndexedSlices):
                return add_rows(left, right)
            return add(tf.raw_ops.Snapshot(input=left), tf.raw_ops.Snapshot(input=right))

    return [add_two(a, b) for a, b in zip(left, right, strict=True)]


def keep_apart(operations: Sequence[tf.Operation]) -> None:
    """Keep TensorFlow from computing the gradients of a convolution's kernel and bias as one.

    oneDNN does so where it sees both with one and the same input, which depends on what else is on
    the device; and the sum for the bias is then in another order. A snapshot of the input hides it,
    and copies nothing.
    """
    for operation in operations:
        if operation.type == "BiasAddGrad":
            operation._update_input(0, tf.raw_ops.Snapshot(input=operation.inputs[0]))


class TreeExchange:
    """Sums tensors over the replicas in the order of the tree, with TensorFlow's own transport.

    Devices of one process: the tensors of all are copied to the first, and the sum to all. Several
    processes: every replica gets the tensors of all and adds them up for itself, because
    TensorFlow's ring adds each piece in another order.
    """

    def __call__(
        self,
        replica: tf.distribute.ReplicaContext,
        gradients: list[tf.Tensor],
        others: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sum float32 tensors over the replicas; in replica context."""
        tensors = [*gradients, *others]
        count = replica.num_replicas_in_sync
        if len(replica.strategy.extended.worker_devices) == count:
            summed = replica.merge_call(_sum_local, args=tuple(tensors))
        else:
            summed = packed(
                tensors,
                lambda flat: tree_sum(
                    tf.unstack(replica.all_gather(flat[None], axis=0), count), add
                ),
            )
        return list(summed[: len(gradients)]), list(summed[len(gradients) :])


def _sum_local(strategy: tf.distribute.Strategy, *tensors: Any) -> tuple[tf.Tensor, ...]:
    def summed(values: Any) -> tf.Tensor:
        parts = strategy.experimental_local_results(values)
        with tf.device(parts[0].device or strategy.extended.worker_devices[0]):
            return tree_sum(parts, add)

    return tuple(summed(values) for values in tensors)


def carries(number: int) -> int:
    """Return how many subtrees are completed by the shard of this number, from 0."""
    return (~number & (number + 1)).bit_length() - 1
