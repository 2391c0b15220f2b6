"""Chunks of steps: the chief schedules them, and whichever worker is free runs the next one.

A chunk is (first step, number of steps) and nothing else: the samples of a step follow from its
number, so a chunk that a lost worker left half done is run again by another on the same samples.

A worker keeps nothing that is needed later: the result of a chunk is written to the parameter
servers before it counts as complete, for the worker may be gone when its chunk is done but others
of the same call are not.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

# In one call: the last chunk keeps the other workers waiting for a quarter of the time at most.
_CHUNKS_PER_WORKER = 4
# No chunk is shorter: to schedule one takes some 10 ms.
_CHUNK_SECS = 0.15


@dataclass(frozen=True)
class ChunkResult:
    """What a chunk of `count` steps from step `start` on wrote, [width]."""

    start: int
    count: int
    values: np.ndarray


class ResultBuffer:
    """Holds the results of the chunks of a call, one row each, on a parameter server.

    Attributes:
        rows: the variable, [chunks, width].
        step_secs: how long a step took in the last call, all workers taken together; 0 before the
            first.
    """

    def __init__(self, chunks: int, width: int, dtype: tf.DType) -> None:
        self.rows = tf.Variable(tf.zeros([chunks, width], dtype), trainable=False, name="board")
        self.step_secs = 0.0

    def write(self, row: tf.Tensor, values: tf.Tensor) -> None:
        """Write a row, [width]; its number is a scalar."""
        self.rows.scatter_update(tf.IndexedSlices(values[None], row[None]))


class ChunkScheduler:
    """Schedules chunks on the workers."""

    def __init__(self, strategy: tf.distribute.Strategy, num_workers: int) -> None:
        self._strategy = strategy
        self.num_workers = num_workers
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def send(self, tensors: list[tf.Tensor]) -> Any:
        """Send tensors to every worker once; return the iterator that chunks take them from."""

        def elements() -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(tuple(tensors)).repeat()

        return iter(self._coordinator.create_per_worker_dataset(elements))

    def result_buffer(self, width: int, dtype: tf.DType = tf.float64) -> ResultBuffer:
        """Create a buffer with a row for each chunk of a call."""
        with self._strategy.scope():
            return ResultBuffer(self.num_workers * _CHUNKS_PER_WORKER, width, dtype)

    def run(
        self,
        chunk: Callable[..., Any],
        iterator: Any,
        result_buffer: ResultBuffer,
        start: int,
        count: int,
    ) -> list[ChunkResult]:
        """Run the steps [start, start + count), each once.

        Args:
            chunk: a tf.function of (iterator, row of the buffer, first step, number of steps), the
                last three int64.

        Returns:
            The results of the chunks, in order of steps.

        Raises:
            tf.errors.UnavailableError: a parameter server was lost. The loss of a worker is made
                up for.
        """
        began = time.monotonic()
        secs = result_buffer.step_secs * count
        per_worker = min(_CHUNKS_PER_WORKER, max(1, int(secs / _CHUNK_SECS)))
        number = min(count, self.num_workers * per_worker)
        bounds = [start + count * row // number for row in range(number + 1)]
        pieces = [(first, end - first) for first, end in itertools.pairwise(bounds)]
        for row, (first, size) in enumerate(pieces):
            numbers = (tf.constant(value, tf.int64) for value in (row, first, size))
            self._coordinator.schedule(chunk, args=(iterator, *numbers))
        self._coordinator.join()
        result_buffer.step_secs = (time.monotonic() - began) / count
        return [
            ChunkResult(first, size, values)
            for (first, size), values in zip(pieces, result_buffer.rows.numpy(), strict=False)
        ]
