"""Steps that are handed out: the chief schedules chunks of steps, and whichever worker is free runs the next one.

A chunk is (first step, number of steps) and nothing else: the samples of a step follow from its number, so a chunk that a
dying worker left half done is run again by another on the same samples. Steps are counted when their chunk is complete, so
the count is exact; what a lost worker had applied already is applied twice, and is reported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.input import Feed, Source
from trainer.loop import EvalLoop, Loops, TrainLoop
from trainer.protocols import Batch, Dataset, Task

_CHUNKS_PER_WORKER = 4  # in one call: the last to finish keeps the others waiting for a quarter of their time at most


class Workers:
    """The workers that chunks are handed out to.

    Attributes:
        count: how many there are.
    """

    def __init__(self, strategy: tf.distribute.Strategy, count: int) -> None:
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.count = count

    def send(self, tensors: list[tf.Tensor]) -> Any:
        """Sends every worker these tensors, once; a chunk takes them from the iterator that is returned."""

        def elements() -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(tuple(tensors)).repeat()

        return iter(self._coordinator.create_per_worker_dataset(elements))

    def run(self, chunk: Callable[..., Any], opened: Any, start: int, count: int) -> list[tuple[int, Any]]:
        """Runs the steps [start, start + count), each once.

        Returns:
            For each chunk, in order, its number of steps and what it returned.

        Raises:
            tf.errors.UnavailableError: a parameter server was lost. The loss of a worker is made up for.
        """
        size = max(1, count // (self.count * _CHUNKS_PER_WORKER))
        sizes = [min(size, count - done) for done in range(0, count, size)]
        starts = [tf.constant(start + done, tf.int64) for done in range(0, count, size)]
        values = [
            self._coordinator.schedule(chunk, args=(opened, first, tf.constant(steps, tf.int64)))
            for first, steps in zip(starts, sizes, strict=True)
        ]
        self._coordinator.join()
        return [(steps, value.fetch()) for steps, value in zip(sizes, values, strict=True)]


class Shipped(Feed):
    """For workers in other processes: what a split holds in memory is sent to each of them once, not with every chunk.

    The assembly of a batch is traced once; the tensors of this process that it refers to become its arguments.
    """

    def __init__(self, source: Source, workers: Workers) -> None:
        scalar = tf.TensorSpec([], tf.int64)
        self._assemble = tf.function(source.assemble, autograph=False).get_concrete_function(scalar, scalar)
        self._source, self._workers = source, workers

    def start(self, step: int) -> Any:
        return self._workers.send(list(self._assemble.captured_inputs))

    def take(self, opened: Any) -> Any:
        return opened

    def give(self, taken: Any, step: tf.Tensor, replica: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        # The identity brings a tensor from the graph around the loop into the loop's own; nothing is copied.
        given = [tf.identity(x) for x in (step, tf.cast(replica, tf.int64), *taken)]
        inputs = {placeholder.name: x for placeholder, x in zip(self._assemble.inputs, given, strict=True)}
        names = [output.name for output in self._assemble.outputs]
        values = tf.graph_util.import_graph_def(self._assemble.graph.as_graph_def(), inputs, names, name="assemble")
        for value, output in zip(values, self._assemble.outputs, strict=True):
            value.set_shape(output.shape)
        return tf.nest.pack_sequence_as(self._assemble.structured_outputs, values)


class ChunkedTrainLoop(TrainLoop):
    """Runs training steps on the workers, each step on one of them, all against the same variables.

    Attributes:
        repeated: steps that were applied a second time, because a worker was lost in the middle of a chunk.
    """

    def __init__(self, *args: Any, workers: Workers, **options: Any) -> None:
        super().__init__(*args, **options)
        self._workers, self.repeated = workers, 0
        with self.strategy.scope():
            self._applied = tf.Variable(0, dtype=tf.int64, trainable=False, name="applied")
        self._report: dict[str, float] = {}

    def run(self, opened: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs `count` (scalar int64) steps; returns as `TrainLoop.run` does."""
        state, count = self._state, int(count)
        start, applied, began = int(state.step.numpy()), int(self._applied.numpy()), time.monotonic()
        chunks = self._workers.run(self._chunk, opened, start, count)
        window, epoch = state.window.numpy(), state.epoch.numpy()
        for _, (sums, *_) in chunks:
            window, epoch = window + sums, epoch + sums
        self.repeated += int(self._applied.numpy()) - applied - count
        state.step.assign(start + count)
        state.window.assign(window)
        state.epoch.assign(epoch)
        self._describe(chunks, time.monotonic() - began)
        return tf.constant(window), self._schedule(tf.constant(start + count - 1, tf.int64))

    def report(self) -> dict[str, float]:
        """Gives what is particular to steps that are handed out, for the log: of the last call, `steps_repeated` since the start."""
        return {**self._report, "steps_repeated": float(self.repeated)}

    def _describe(self, chunks: list[tuple[int, Any]], secs: float) -> None:
        steps: Counter[int] = Counter()
        for size, (_, worker, _, _) in chunks:
            steps[int(worker)] += size
        self._report = {f"worker_{worker}_steps_per_sec": steps[worker] / secs for worker in range(self._workers.count)}
        self._report["staleness_mean"] = sum(float(stale) for _, (_, _, stale, _) in chunks) / steps.total()
        self._report["staleness_max"] = max(float(stalest) for _, (_, _, _, stalest) in chunks)

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, start: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Runs a chunk of steps on one worker.

        Returns:
            The sums of their metrics, the worker's number, and staleness: by how many updates of others the variables had moved
            on when an update was applied; its sum over the steps and its maximum.
        """
        worker, tensors = tf.distribute.coordinator.experimental_get_current_worker_index(), next(iterator)

        def one_step(index: tf.Tensor, sums: tf.Tensor, stale: tf.Tensor, stalest: tf.Tensor) -> tuple[tf.Tensor, ...]:
            before = self._applied.read_value()
            new = self._step(index, self.feed.take(tensors))
            with tf.control_dependencies([new]):
                self._applied.assign_add(1)
            others = self._applied.read_value() - before - 1
            return index + 1, sums + new, stale + others, tf.maximum(stalest, others)

        zero = tf.constant(0, tf.int64)
        first = (start, tf.zeros([2 * len(self._task.metrics)], tf.float64), zero, zero)
        _, sums, stale, stalest = tf.while_loop(lambda index, *_: index < start + count, one_step, first, parallel_iterations=1)
        return sums, worker, stale, stalest


class ChunkedEvalLoop(EvalLoop):
    """Evaluates on the workers. A batch that is evaluated twice counts once: only what a chunk returns is added up."""

    def __init__(self, *args: Any, workers: Workers) -> None:
        super().__init__(*args)
        self._workers = workers

    def run(self, opened: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Adds the sums of the batches [start, start + count) to `total`, [2 * metrics] float64."""
        chunks = self._workers.run(self._chunk, opened, int(start), int(count))
        return tf.constant(np.sum([total.numpy(), *(sums for _, sums in chunks)], axis=0))

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return self._batches(next(iterator), tf.zeros([2 * len(self._task.metrics)], tf.float64), start, count)


class ChunkedLoops(Loops):
    """Makes the loops of a strategy whose chief hands out steps."""

    def __init__(self, strategy: tf.distribute.Strategy, workers: Workers) -> None:
        self._strategy, self._workers = strategy, workers

    def train(self, task: Task, dataset: Dataset, source: Source, **parts: Any) -> TrainLoop:
        """Makes the loop over training steps; `parts` are those of `TrainLoop`."""
        return ChunkedTrainLoop(self._strategy, task, dataset, Shipped(source, self._workers), workers=self._workers, **parts)

    def evaluate(self, task: Task, dataset: Dataset, source: Source) -> EvalLoop:
        """Makes the loop over a split's batches."""
        return ChunkedEvalLoop(self._strategy, task, dataset, Shipped(source, self._workers), workers=self._workers)
