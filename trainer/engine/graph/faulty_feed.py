"""Fault injection into training batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.cluster.fault_injection import Faults
from trainer.engine.graph.input import Feed
from trainer.protocols import Batch


class FaultyFeed(Feed):
    """Wraps a feed: while a fault lasts, the weights of a batch's examples are NaN.

    The weights, for the engine itself multiplies every loss by them: so the loss and the gradient
    are NaN, whatever the layers of a model make of features that are.

    Args:
        feed: the feed that is wrapped.
        faults: switch the fault on and off.
    """

    def __init__(self, feed: Feed, faults: Faults) -> None:
        self._feed = feed
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
        batch, draws = self._feed.replica_batch(element, step, replica)
        weight = batch["weight"]
        return {**batch, "weight": tf.where(self._is_on, math.nan, weight)}, draws

    def __getattr__(self, name: str) -> Any:
        # What else the wrapped feed can do, such as `open_chunk` of one for workers elsewhere.
        return getattr(self._feed, name)
