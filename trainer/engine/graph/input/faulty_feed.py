"""Fault injection into training batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.cluster.fault_injection import Faults
from trainer.config.schema import Fault
from trainer.engine.graph.input.feed import Feed
from trainer.protocols import Batch


class FaultyFeed(Feed):
    """Wraps a feed: while a fault lasts, the weights of a batch's examples are NaN, or it rests.

    The weights, for the engine itself multiplies every loss by them: so the loss and the gradient
    are NaN, whatever the layers of a model make of features that are.

    Args:
        delays: rests in steps, from step `at` on, counted from 0.
        worker_index: returns the number of the worker that runs a step; None: this process does.
    """

    def __init__(
        self,
        feed: Feed,
        faults: Faults,
        delays: Sequence[Fault] = (),
        worker_index: Callable[[], tf.Tensor] | None = None,
    ) -> None:
        self._feed = feed
        self._delays = delays
        self._worker_index = worker_index
        # In no checkpoint: a fault happens once.
        self._is_on = tf.Variable(False, trainable=False, name="is_nan")
        faults.on_nan(self._is_on.assign)

    @property
    def fetches(self) -> bool:
        return self._feed.fetches

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        return self._feed.open(step, left_out)

    def next(self, iterator: Any) -> Any:
        return self._feed.next(iterator)

    def replica_batch(
        self, element: Any, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        # Before the batch: so the rest is part of the step, and no wait for input.
        with tf.control_dependencies(
            [_rest(self._rest_secs(step, replica))] if self._delays else []
        ):
            step = tf.identity(step)
        batch, draws = self._feed.replica_batch(element, step, replica)
        weight = batch["weight"]
        return {**batch, "weight": tf.where(self._is_on, math.nan, weight)}, draws

    def _rest_secs(self, step: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
        """Return how long a replica rests in a step, float64; 0 but for its process's first."""
        secs = tf.zeros([], tf.float64)
        for delay in self._delays:
            if self._worker_index is None:
                strategy = tf.distribute.get_strategy()
                is_due = tf.equal(replica % len(strategy.extended.worker_devices), 0)
            else:
                number = int(delay.process.rpartition("-")[2])
                is_due = tf.equal(tf.cast(self._worker_index(), tf.int64), number)
            is_due = tf.logical_and(is_due, step >= delay.at)
            secs += tf.where(is_due, tf.constant(delay.delay_secs, tf.float64), 0.0)
        return secs

    def __getattr__(self, name: str) -> Any:
        # What else the wrapped feed can do, such as `open_chunk` of one for workers elsewhere.
        return getattr(self._feed, name)


def _rest(secs: tf.Tensor) -> tf.Tensor:
    """Return a tensor that is there after so many seconds, in which no processor is used.

    By an operation of tf.data: a Python function would not be there in a process that only runs
    what another sends it.
    """
    element = {"output_types": [tf.int64], "output_shapes": [tf.TensorShape([])]}
    # One that is computed at every step: a constant would be folded into the graph before it runs.
    # Half: it rests before the element, and again before the end that is looked for after it.
    micros = tf.cast(secs * 0.5e6, tf.int64)
    dataset = tf.raw_ops.TensorDataset(components=[micros], output_shapes=[tf.TensorShape([])])
    resting = tf.raw_ops.SleepDataset(input_dataset=dataset, sleep_microseconds=micros, **element)
    return tf.raw_ops.DatasetToSingleElement(dataset=resting, **element)[0]
