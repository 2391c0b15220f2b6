"""What a chunk of asynchronous steps measures: its worker, its time, how stale its updates are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from trainer.runs.ledger import STALENESS_EDGES, WorkerRecord, WorkerTime

WIDTH = 4 + len(STALENESS_EDGES)
"""Numbers that a chunk writes: worker, seconds, staleness summed and largest, and its histogram."""


class Staleness(NamedTuple):
    """The staleness of the updates of a chunk.

    Attributes:
        total: its sum, scalar int64.
        largest: the largest, scalar int64.
        counts: number of updates in each bin of `STALENESS_EDGES`, int64.
    """

    total: tf.Tensor
    largest: tf.Tensor
    counts: tf.Tensor

    @classmethod
    def zero(cls) -> Staleness:
        """Return that of no update."""
        zero = tf.constant(0, tf.int64)
        return cls(zero, zero, tf.zeros([len(STALENESS_EDGES)], tf.int64))

    def add(self, staleness: tf.Tensor) -> Staleness:
        """Return it with one more update, of this staleness, scalar int64."""
        reached = tf.cast(staleness >= tf.constant(STALENESS_EDGES, tf.int64), tf.int64)
        # It reaches all edges up to its bin, and not the next one.
        one = reached - tf.concat([reached[1:], [0]], axis=0)
        return Staleness(
            self.total + staleness, tf.maximum(self.largest, staleness), self.counts + one
        )

    def pack(self, worker: tf.Tensor, secs: tf.Tensor) -> tf.Tensor:
        """Return what the chunk writes, [WIDTH] float64."""
        numbers = [tf.cast(x, tf.float64) for x in (worker, secs, self.total, self.largest)]
        return tf.concat([tf.stack(numbers), tf.cast(self.counts, tf.float64)], axis=0)


class AsyncInterval:
    """Adds up what the chunks of a log interval have measured."""

    def __init__(self, num_workers: int) -> None:
        self._secs = 0.0
        self._busy_secs = np.zeros(num_workers)
        self._steps = np.zeros(num_workers, np.int64)
        self._stale = 0.0
        self._stalest = 0.0
        self._counts = np.zeros(len(STALENESS_EDGES), np.int64)

    def add(self, chunks: Iterable[tuple[int, np.ndarray]], secs: float) -> None:
        """Add the chunks of one call.

        Args:
            chunks: of each its number of steps and what it wrote, [WIDTH].
        """
        self._secs += secs
        for count, (worker, busy, stale, stalest, *counts) in chunks:
            self._busy_secs[int(worker)] += busy
            self._steps[int(worker)] += count
            self._stale += stale
            self._stalest = max(self._stalest, stalest)
            self._counts += np.asarray(counts, np.int64)

    def report(self) -> dict[str, float]:
        """Return the rate of each worker and the staleness for the log, by name."""
        num_steps = int(self._steps.sum())
        if not num_steps:
            return {}
        rates = {
            f"worker_{worker}_steps_per_sec": float(steps) / self._secs
            for worker, steps in enumerate(self._steps)
        }
        return {
            **rates,
            "staleness_mean": float(self._stale) / num_steps,
            "staleness_max": float(self._stalest),
        }

    def record(self) -> WorkerRecord:
        """Return the time of each worker, and the histogram.

        A worker waits while it has no chunk: for the chief to hand one out, or for the others to
        finish those of the same call.
        """
        if not self._steps.any():
            return WorkerRecord()
        times = {
            f"worker-{worker}": WorkerTime(
                float(busy), max(0.0, self._secs - float(busy)), int(self._steps[worker])
            )
            for worker, busy in enumerate(self._busy_secs)
        }
        return WorkerRecord(times, [int(count) for count in self._counts])
