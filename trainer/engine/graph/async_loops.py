"""Loops whose steps are handed out: each runs on one worker, all against the same variables.

Steps are counted when their chunk is complete, so the count is exact; the steps that a lost worker
had begun already are applied twice, and are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.graph.chunks import ChunkResult, ChunkScheduler
from trainer.engine.graph.divergence import ADVICE, DivergenceStatus
from trainer.engine.graph.eval_loop import EvalLoop
from trainer.engine.graph.input import Feed, Source
from trainer.engine.graph.loops import Loops
from trainer.engine.graph.metric_sums import unpack
from trainer.engine.graph.predict_loop import PredictLoop
from trainer.engine.graph.remote_input import RemoteFeed, RemotePipelineFeed
from trainer.engine.graph.train_loop import TrainLoop
from trainer.errors import NonFiniteError
from trainer.protocols import Dataset, Task


class AsyncTrainLoop(TrainLoop):
    """Runs training steps on the workers, each step on one of them."""

    feed: RemoteFeed

    def __init__(self, *args: Any, scheduler: ChunkScheduler, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scheduler = scheduler
        self._result_buffer = scheduler.result_buffer(2 * len(self._task.metrics) + 3)
        with self.strategy.scope():
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False, name="begun")
        self._report: dict[str, float] = {}

    def run(self, iterator: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, DivergenceStatus]:
        """Run `count` (scalar int64) steps.

        Returns:
            As `TrainLoop.run`; the time spent waiting for input is not measured, and is 0.

        Raises:
            NonFiniteError: a sum of the metrics is not finite.
        """
        state = self.state
        count = int(count)
        start = int(state.step.numpy())
        begun = int(self._begun.numpy())
        chunks = self._scheduler.run(self._chunk, iterator, self._result_buffer, start, count)
        self._measure(chunks, self._result_buffer.step_secs * count)
        window = state.summary_sums.numpy()
        epoch = state.epoch_sums.numpy()
        for chunk in chunks:
            *sums, _, _, _ = chunk.values
            self.feed.count_missing(chunk.start, chunk.count, sums[1])
            if not np.isfinite(sums).all():
                loss = unpack(self._task, sums)["loss"]
                last = chunk.start + chunk.count - 1
                raise NonFiniteError(
                    f"the loss became {loss} within steps {chunk.start} to {last}; {ADVICE}"
                )
            window = window + sums
            epoch = epoch + sums
        state.repeated_steps.assign_add(int(self._begun.numpy()) - begun - count)
        state.step.assign(start + count)
        state.summary_sums.assign(window)
        state.epoch_sums.assign(epoch)
        return tf.constant(window), tf.zeros([], tf.float64), state.divergence_monitor.begin()

    def report(self) -> dict[str, float]:
        """Return further values for the log, by name: of the last call, and `steps_repeated`.

        The latter is of the whole run.
        """
        return {
            **super().report(),
            **self._report,
            "steps_repeated": float(self.state.repeated_steps.numpy()),
        }

    def first_lines(self) -> Iterable[str]:
        """Return how much each parameter server holds, a line each."""
        sizes_by_task: dict[int, list[int]] = {}
        for variable in self.state.variables().values():
            task = tf.DeviceSpec.from_string(variable.device).task
            size = variable.shape.num_elements() * variable.dtype.size
            sizes_by_task.setdefault(task, []).append(size)
        for task, sizes in sorted(sizes_by_task.items()):
            yield f"ps-{task} holds {sum(sizes) / 1e6:.2f} MB in {len(sizes)} variables"

    def last_lines(self) -> Iterable[str]:
        """Return a line on steps that were repeated because workers were lost, if any."""
        if repeated := int(self.state.repeated_steps.numpy()):
            yield (
                f"{repeated} steps were begun a second time, because the worker that ran them was "
                "lost."
            )

    def _measure(self, chunks: list[ChunkResult], secs: float) -> None:
        """Compute the workers' rates and the staleness of a call for `report`."""
        steps: Counter[int] = Counter()
        for chunk in chunks:
            steps[int(chunk.values[-3])] += chunk.count
        self._report = {
            f"worker_{worker}_steps_per_sec": steps[worker] / secs
            for worker in range(self._scheduler.num_workers)
        }
        self._report["staleness_mean"] = sum(x.values[-2] for x in chunks) / steps.total()
        self._report["staleness_max"] = max(x.values[-1] for x in chunks)

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        """Run a chunk of steps on one worker.

        Writes the sums of their metrics, the worker's number, and the staleness: how many steps
        others began between the beginning of a step and its update; its sum over the steps and
        its maximum.
        """
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        iterator = self.feed.open_chunk(next(iterator), start, count)
        # One operation, so that what comes after it comes after all of its updates too.
        step = tf.function(
            lambda index: self._step(index, self.feed.next(iterator))[0], autograph=False
        )

        def one_step(
            index: tf.Tensor, sums: tf.Tensor, stale: tf.Tensor, stalest: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            with tf.control_dependencies([self._begun.assign_add(1, read_value=False)]):
                before = self._begun.read_value()
            with tf.control_dependencies([before]):
                new = step(index)
            with tf.control_dependencies([new]):
                others = self._begun.read_value() - before
            return index + 1, sums + new, stale + others, tf.maximum(stalest, others)

        zero = tf.constant(0, tf.int64)
        first = (start, tf.zeros([2 * len(self._task.metrics)], tf.float64), zero, zero)
        _, sums, stale, stalest = tf.while_loop(
            lambda index, *_: index < start + count, one_step, first, parallel_iterations=1
        )
        numbers = tf.stack([tf.cast(x, tf.float64) for x in (worker, stale, stalest)])
        self._result_buffer.write(row, tf.concat([sums, numbers], axis=0))


class AsyncEvalLoop(EvalLoop):
    """Evaluates on the workers.

    A batch that is evaluated twice counts once: a chunk's sums replace those of an earlier try.
    """

    feed: RemoteFeed

    def __init__(self, *args: Any, scheduler: ChunkScheduler) -> None:
        super().__init__(*args)
        self._scheduler = scheduler
        self._result_buffer = scheduler.result_buffer(2 * len(self._task.metrics))

    def run(self, iterator: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Add the sums of the batches [start, start + count) to `total`, [2 * metrics] float64."""
        chunks = self._scheduler.run(
            self._chunk, iterator, self._result_buffer, int(start), int(count)
        )
        for chunk in chunks:
            self.feed.count_missing(chunk.start, chunk.count, chunk.values[1])
            total += chunk.values
        return total

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        iterator = self.feed.open_chunk(next(iterator), start, count)
        zero = tf.zeros([2 * len(self._task.metrics)], tf.float64)
        self._result_buffer.write(row, self._batches(iterator, zero, start, count))


class AsyncPredictLoop(PredictLoop):
    """Predicts on the workers; a chunk replaces what an earlier try of it wrote."""

    feed: RemoteFeed

    def __init__(self, *args: Any, scheduler: ChunkScheduler) -> None:
        super().__init__(*args)
        self._scheduler = scheduler
        self._result_buffer = scheduler.result_buffer(1, tf.string)

    def run(self, iterator: Any, start: int, count: int) -> dict[str, np.ndarray]:
        """Predict the batches [start, start + count), as `PredictLoop.run` does."""
        rows = super().run(iterator, start, count)
        self.feed.count_missing(start, count, float(rows["weight"].sum()))
        return rows

    def _serialized(self, iterator: Any, start: int, count: int) -> tf.Tensor:
        chunks = self._scheduler.run(self._chunk, iterator, self._result_buffer, start, count)
        return tf.concat(
            [tf.io.parse_tensor(chunk.values[0], tf.string) for chunk in chunks], axis=0
        )

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        iterator = self.feed.open_chunk(next(iterator), start, count)
        self._result_buffer.write(
            row, tf.io.serialize_tensor(self._batches(iterator, start, count))[None]
        )


class AsyncLoops(Loops):
    """Creates the loops of a strategy whose chief hands out steps."""

    def __init__(self, strategy: tf.distribute.Strategy, scheduler: ChunkScheduler) -> None:
        self._strategy = strategy
        self._scheduler = scheduler

    def feed(self, source: Source) -> Feed:
        """Choose how the batches of a source reach the workers."""
        kind = RemoteFeed if source.split.in_memory else RemotePipelineFeed
        return kind(source, self._scheduler.send)

    def train(self, dataset: Dataset, feed: Feed, **parts: Any) -> TrainLoop:
        """Create the loop over training steps; `parts` are those of `TrainLoop`."""
        return AsyncTrainLoop(self._strategy, dataset, feed, scheduler=self._scheduler, **parts)

    def evaluate(self, task: Task, dataset: Dataset, feed: Feed) -> EvalLoop:
        """Create the loop that evaluates the batches of a split."""
        return AsyncEvalLoop(self._strategy, task, dataset, feed, scheduler=self._scheduler)

    def predict(self, task: Task, dataset: Dataset, feed: Feed) -> PredictLoop:
        """Create the loop that predicts the batches of a split."""
        return AsyncPredictLoop(self._strategy, task, dataset, feed, scheduler=self._scheduler)
