"""What a task may use in a step besides its updates: parts of the batch, draws, collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.engine.graph.collective_log import CollectiveLog
from trainer.engine.graph.collectives import Collectives
from trainer.engine.graph.random_layers import task_draws
from trainer.errors import ConfigError
from trainer.protocols import Batch


class StepBase:
    """A step on one replica; see `trainer.engine.graph.step.Step`.

    Attributes:
        index: number of the step, scalar int64, from 0.
        replica: number of this replica, from 0; a scalar tensor where one trace is for all.
        worker: number of the process that this replica belongs to, from 0; likewise.
        num_replicas: replicas that share the step.
        collectives: this replica's.

    Args:
        log: the collectives of all replicas, in order; shared by them.
    """

    def __init__(self, index: tf.Tensor, log: CollectiveLog) -> None:
        self.index = index
        self._replica = tf.distribute.get_replica_context()
        self.num_replicas: int = self._replica.num_replicas_in_sync
        self.replica, self.worker = _numbers(self._replica)
        self.collectives = Collectives(log)
        self._draws = task_draws()

    def split(self, batch: Batch, count: int) -> list[Batch]:
        """Cut this replica's batch into `count` equal parts, for an update with each.

        Part k has every `count`-th example from the k-th on: the same examples of the global batch
        on any number of replicas.

        Raises:
            ConfigError: the batch cannot be cut evenly.
        """
        size = int(batch["weight"].shape[0])
        if size % count:
            raise ConfigError(
                f"task: {size} examples on each of {self.num_replicas} replicas cannot be split "
                f"into {count} equal parts; change batch.global_size"
            )
        cut = tf.nest.map_structure(
            lambda x: tf.reshape(x, [size // count, count, *x.shape[1:]]), batch
        )
        return [
            tf.nest.map_structure(lambda x, number=number: x[:, number], cut)
            for number in range(count)
        ]

    def random_normal(self, shape: Sequence[int], dtype: Any = tf.float32) -> tf.Tensor:
        """Draw from the standard normal distribution.

        The numbers are this replica's, in a loss function this part's, slice of what the global
        batch draws: the same on any number of replicas, shards and micro-batches. They depend on
        the seed, the step, and how often the task has drawn before in the step.

        Args:
            shape: a static shape, whose first dimension is the example; [] is a number that all
                replicas share.
            dtype: a floating-point type.
        """
        return self._draws.random_normal(shape, dtype=dtype)

    def random_uniform(
        self,
        shape: Sequence[int],
        minval: Any = 0,
        maxval: Any = None,
        dtype: Any = tf.float32,
    ) -> tf.Tensor:
        """Draw uniformly from [minval, maxval); the rest is as in `random_normal`.

        Args:
            shape: as in `random_normal`.
            minval: the lower bound.
            maxval: the upper bound; None: 1, or for integers all that the type holds.
            dtype: a floating-point or integer type.
        """
        return self._draws.random_uniform(shape, minval, maxval, dtype)

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce a nest of tensors over all replicas, element by element, to every replica.

        This, `map_reduce`, `reduce_scatter`, `all_gather`, `map_gather` and `broadcast` may stand
        anywhere in a step, also within a model, but not within a tf.function, tf.while_loop or
        tf.cond. All replicas must call the same ones, in the same order and with the same shapes,
        which must be static. They are differentiable, with respect to the sum of all replicas'
        losses. Where batch.accumulate or batch.shards cut the batch, a loss function may not
        communicate, and with batch.shards neither may `eval_step`.

        Args:
            value: this replica's nest of numbers or dense tensors.
            op: sum, mean, min or max. There is no mean of integers.
        """
        return self.collectives.all_reduce(value, op)

    def map_reduce(self, fn: Callable[[Any], Any], value: Any, op: str = "sum") -> Any:
        """Apply `fn` to this replica's value, and reduce the resulting nest like `all_reduce`."""
        return self.collectives.map_reduce(fn, value, op)

    def reduce_scatter(self, value: Any, op: str = "sum", axis: int = 0) -> Any:
        """Reduce a nest over all replicas, and cut it: each replica gets the part of its number.

        `all_gather` of the parts is `all_reduce`.

        Args:
            value: this replica's nest of dense tensors.
            op: as in `all_reduce`.
            axis: where each tensor is cut; its length must be a multiple of `num_replicas`.
        """
        return self.collectives.reduce_scatter(value, op, axis)

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Stack the values of all replicas along a new axis; every replica gets the result.

        Args:
            value: this replica's nest of numbers or dense tensors.
            axis: where the new axis, of length `num_replicas`, is in the result.
        """
        return self.collectives.all_gather(value, axis)

    def map_gather(self, fn: Callable[[Any], Any], value: Any, axis: int = 0) -> Any:
        """Apply `fn` to this replica's value, and gather the resulting nest like `all_gather`."""
        return self.collectives.map_gather(fn, value, axis)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of replica `source` on every replica.

        The others' values must have the same nest, shapes and types.
        """
        return self.collectives.broadcast(value, source)


def _numbers(context: tf.distribute.ReplicaContext) -> tuple[int | tf.Tensor, int | tf.Tensor]:
    """Return the number of a replica, and of its process."""
    number = context.replica_id_in_sync_group
    static = tf.get_static_value(number)
    replica = number if static is None else int(static)
    if context.num_replicas_in_sync == 1:  # without a strategy there are no devices to count
        return replica, 0
    return replica, replica // max(1, len(context.strategy.extended.worker_devices))
