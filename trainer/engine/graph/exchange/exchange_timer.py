"""How long the exchange of a step takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf

_Sums = TypeVar("_Sums")

UNSAVED = "unsaved"
"""A name scope of operations that change variables in no checkpoint."""


class ExchangeTimer:
    """Adds up the seconds between the moment that tensors are ready and that of their sum.

    It changes no value: clocks are read beside the reduction, and nothing waits for them. On a GPU
    an operation counts as ready when it has been queued, so it is for processes without.

    Args:
        num_replicas: replicas of this process, each of which exchanges its own tensors.
    """

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        # Of this process alone, and in no checkpoint.
        self._secs = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="exchange_secs")

    def measure(self, tensors: Sequence[tf.Tensor], exchange: Callable[[], _Sums]) -> _Sums:
        """Return what `exchange` returns, a nest of tensors that needs all of `tensors`."""
        with tf.control_dependencies(tensors):
            ready = tf.timestamp()
        sums = exchange()
        with tf.control_dependencies(tf.nest.flatten(sums)):
            arrived = tf.timestamp()
        with tf.name_scope(UNSAVED):
            self._secs.assign_add(arrived - ready, read_value=False)
        return sums

    def read(self) -> float:
        """Return the seconds so far, the mean over the replicas of this process."""
        return float(self._secs.numpy()) / self._num_replicas
