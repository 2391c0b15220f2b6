"""Loops whose steps are handed out: each runs on one worker, all against the same variables.

The chief schedules chunks, and whichever worker is free runs the next one. A chunk is (first step,
number of steps) and nothing else: the samples of a step follow from its number, so a chunk that a
lost worker left half done is run again by another on the same samples. Its steps are counted when
it is complete, so the count is exact; those that were begun already are applied twice, and are
reported. A worker keeps nothing that is needed later: the result of a chunk is on the parameter
servers before it counts, for the worker may be gone when its chunk is done but others are not.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from trainer.engine.graph.asynchronous.remote_input import RemoteFeed, RemotePipelineFeed
from trainer.engine.graph.input.feed import Feed, Source
from trainer.engine.graph.loops.split_loops import EvalLoop, Loops, Predict, PredictLoop, Transform
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.step.metric_sums import num_sums
from trainer.engine.graph.step.update_check import VERDICT_SIZE, DivergenceStatus, Verdict
from trainer.errors import ConfigError
from trainer.protocols import Dataset, Stream, Task
from trainer.runs.ledger import WorkerRecord, WorkerTime

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


class ChunkScheduler:
    """Schedules chunks on the workers."""

    def __init__(self, strategy: tf.distribute.Strategy, num_workers: int) -> None:
        self.strategy = strategy
        self.num_workers = num_workers
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def send(self, tensors: list[tf.Tensor]) -> Any:
        """Send tensors to every worker once; return the iterator that chunks take them from."""

        def elements() -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(tuple(tensors)).repeat()

        return iter(self.coordinator.create_per_worker_dataset(elements))


class Chunks:
    """Runs the chunks of a loop; each writes a row, [width], to a parameter server.

    Attributes:
        step_secs: how long a step took in the last call, all workers taken together; 0 before the
            first.
    """

    def __init__(self, scheduler: ChunkScheduler, width: int, dtype: tf.DType = tf.float64) -> None:
        self._scheduler = scheduler
        zeros = tf.zeros([scheduler.num_workers * _CHUNKS_PER_WORKER, width], dtype)
        with scheduler.strategy.scope():
            self._rows = tf.Variable(zeros, trainable=False, name="board")
        self.step_secs = 0.0

    def write(self, row: tf.Tensor, values: tf.Tensor) -> None:
        """Write a row, [width]; its number is a scalar."""
        self._rows.scatter_update(tf.IndexedSlices(values[None], row[None]))

    def run(
        self, chunk: Callable[..., Any], iterator: Any, start: int, count: int
    ) -> list[ChunkResult]:
        """Run the steps [start, start + count), each once; return the results in order.

        Args:
            chunk: a tf.function of (iterator, row that it writes, first step, number of steps), the
                last three int64.

        Raises:
            tf.errors.UnavailableError: a parameter server was lost. The loss of a worker is made
                up for.
        """
        began = time.monotonic()
        coordinator, num_workers = self._scheduler.coordinator, self._scheduler.num_workers
        per_worker = min(_CHUNKS_PER_WORKER, max(1, int(self.step_secs * count / _CHUNK_SECS)))
        number = min(count, num_workers * per_worker)
        bounds = [start + count * row // number for row in range(number + 1)]
        pieces = [(first, end - first) for first, end in itertools.pairwise(bounds)]
        for row, (first, size) in enumerate(pieces):
            numbers = (tf.constant(value, tf.int64) for value in (row, first, size))
            coordinator.schedule(chunk, args=(iterator, *numbers))
        coordinator.join()
        self.step_secs = (time.monotonic() - began) / count
        results = zip(pieces, self._rows.numpy(), strict=False)
        return [ChunkResult(*piece, values) for piece, values in results]


_NUM_MEASURED = 4
"""Numbers that a chunk measures: worker, seconds, staleness of its updates summed and largest."""


class AsyncTrainLoop(TrainLoop):
    """Runs training steps on the workers, each step on one of them."""

    feed: RemoteFeed

    def __init__(self, *args: Any, scheduler: ChunkScheduler, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scheduler = scheduler
        self._num_sums = num_sums(self._task)
        self._num_status = self._num_sums + 1 + VERDICT_SIZE
        self._chunks = Chunks(scheduler, self._num_status + _NUM_MEASURED)
        with self.strategy.scope():
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False, name="begun")
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._record = WorkerRecord(asynchronous=True)
        self._stale_sum, self._stalest = 0.0, 0.0
        self._interval_is_over = False

    def run(self, iterator: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, DivergenceStatus]:
        """Run `count` (scalar int64) steps; the wait for input is not measured, and is 0.

        Raises:
            NonFiniteError: an update was not sound.
        """
        state = self.state
        count = int(count)
        start = int(state.step.numpy())
        begun = int(self._begun.numpy())
        chunks = self._chunks.run(self._chunk, iterator, start, count)
        if self._interval_is_over:
            self._begin_interval()
        self._measure(chunks, self._chunks.step_secs * count)
        self._check_sound(chunks)
        window = state.summary_sums.numpy()
        epoch = state.epoch_sums.numpy()
        for chunk in chunks:
            sums = chunk.values[: self._num_sums]
            self.feed.count_missing(chunk.start, chunk.count, sums[1])
            window = window + sums
            epoch = epoch + sums
        state.repeated_steps.assign_add(int(self._begun.numpy()) - begun - count)
        state.step.assign(start + count)
        state.summary_sums.assign(window)
        state.epoch_sums.assign(epoch)
        return tf.constant(window), tf.zeros([], tf.float64), state.divergence_monitor.begin()

    def report(self) -> dict[str, float]:
        # Steps of different workers have no order, so there is no last norm.
        values = {"steps_repeated": float(self.state.repeated_steps.numpy())}
        times = self._record.times
        if num_steps := sum(spent.steps for spent in times.values()):
            for name, spent in times.items():
                values[f"{name.replace('-', '_')}_steps_per_sec"] = spent.steps / spent.secs
            values["staleness_mean"] = self._stale_sum / num_steps
            values["staleness_max"] = self._stalest
        return values

    def take_worker_record(self) -> WorkerRecord:
        """Return what the workers did in the log interval; the next `run` begins another."""
        record = WorkerRecord() if self._interval_is_over else self._record
        self._interval_is_over = True
        return record

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
        if repeated := int(self.state.repeated_steps.numpy()):
            yield (
                f"{repeated} steps were begun a second time, because the worker that ran them was "
                "lost."
            )

    def _measure(self, chunks: list[ChunkResult], secs: float) -> None:
        """Add what the chunks of one call have measured, which took so many seconds.

        A worker waits while it has no chunk: for the chief to hand one out, or for the others to
        finish those of the same call.
        """
        busy_secs = [0.0] * self._scheduler.num_workers
        steps = [0] * self._scheduler.num_workers
        for chunk in chunks:
            worker, busy, stale_sum, stalest = chunk.values[self._num_status :]
            busy_secs[int(worker)] += busy
            steps[int(worker)] += chunk.count
            self._stale_sum += stale_sum
            self._stalest = max(self._stalest, stalest)
        times = {
            f"worker-{worker}": WorkerTime(busy, max(0.0, secs - busy), count)
            for worker, (busy, count) in enumerate(zip(busy_secs, steps, strict=True))
        }
        self._record = self._record + WorkerRecord(times, asynchronous=True)

    def _check_sound(self, chunks: list[ChunkResult]) -> None:
        """Raise unless all updates were sound: a worker makes them before any check."""
        numbers = [chunk.values[self._num_sums : self._num_status] for chunk in chunks]
        for step, *verdict in sorted(numbers, key=lambda status: status[0]):
            if step >= 0:
                monitor = self.state.divergence_monitor
                raise monitor.error(monitor.describe(int(step), Verdict.unpack(np.array(verdict))))

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        """Run a chunk of steps on one worker.

        Writes the sums of their metrics, the first step that is not sound and the verdict on it,
        and what `_measure` needs. The staleness of an update is how many steps others began between
        the beginning of its step and the update.
        """
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        monitor = self.state.divergence_monitor
        began = tf.timestamp()
        with tf.control_dependencies([began]):
            start = tf.identity(start)
        iterator = self.feed.open_chunk(next(iterator), start, count)
        # One operation, so that what comes after it comes after all of its updates too.
        step = tf.function(
            lambda index: self._step(index, self.feed.next(iterator)), autograph=False
        )

        def one_step(
            index: tf.Tensor, sums: tf.Tensor, status: DivergenceStatus, *stale: tf.Tensor
        ) -> tuple[Any, ...]:
            with tf.control_dependencies([self._begun.assign_add(1, read_value=False)]):
                before = self._begun.read_value()
            with tf.control_dependencies([before]):
                new, verdict = step(index)
            with tf.control_dependencies([new]):
                others = self._begun.read_value() - before
            status = monitor.note(status, index, verdict)
            stale_sum, stalest = stale
            return index + 1, sums + new, status, stale_sum + others, tf.maximum(stalest, others)

        zeros = tf.zeros([self._num_sums], tf.float64)
        none = tf.zeros([], tf.int64)
        _, sums, status, *stale = tf.while_loop(
            lambda index, *_: index < start + count,
            one_step,
            (start, zeros, monitor.begin(), none, none),
            parallel_iterations=1,
        )
        with tf.control_dependencies([sums]):
            secs = tf.timestamp() - began
        first_bad = tf.cast(status.step, tf.float64)[None]
        verdict = tf.cast(status.verdict.pack(), tf.float64)
        measured = tf.stack([tf.cast(x, tf.float64) for x in (worker, secs, *stale)])
        values = [sums, first_bad, verdict, measured]
        self._chunks.write(row, tf.concat(values, axis=0))
        self.check("the training step")


class AsyncEvalLoop(EvalLoop):
    """Evaluates on the workers.

    A batch that is evaluated twice counts once: a chunk's sums replace those of an earlier try.
    """

    feed: RemoteFeed

    def __init__(self, *args: Any, scheduler: ChunkScheduler, **options: Any) -> None:
        super().__init__(*args, **options)
        self._chunks = Chunks(scheduler, num_sums(self.task))

    def run(self, iterator: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        for chunk in self._chunks.run(self._chunk, iterator, int(start), int(count)):
            self.feed.count_missing(chunk.start, chunk.count, chunk.values[1])
            total += chunk.values
        return total

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        iterator = self.feed.open_chunk(next(iterator), start, count)
        zero = tf.zeros([num_sums(self.task)], tf.float64)
        self._chunks.write(row, self._batches(iterator, zero, start, count))


class AsyncPredictLoop(PredictLoop):
    """Predicts on the workers; a chunk replaces what an earlier try of it wrote."""

    feed: RemoteFeed

    def __init__(self, *args: Any, scheduler: ChunkScheduler, **options: Any) -> None:
        super().__init__(*args, **options)
        self._chunks = Chunks(scheduler, 1, tf.string)

    def run(self, iterator: Any, start: int, count: int) -> dict[str, np.ndarray]:
        rows = super().run(iterator, start, count)
        self.feed.count_missing(start, count, float(rows["weight"].sum()))
        return rows

    def _serialized(self, iterator: Any, start: int, count: int) -> tf.Tensor:
        chunks = self._chunks.run(self._chunk, iterator, start, count)
        return tf.concat(
            [tf.io.parse_tensor(chunk.values[0], tf.string) for chunk in chunks], axis=0
        )

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        iterator = self.feed.open_chunk(next(iterator), start, count)
        self._chunks.write(row, tf.io.serialize_tensor(self._batches(iterator, start, count))[None])


@dataclass(kw_only=True, eq=False, repr=False)
class AsyncLoops(Loops):
    """Creates the loops of a strategy whose chief schedules steps."""

    scheduler: ChunkScheduler
    input_outside: bool = True
    in_sequence: ClassVar[bool] = False

    def train(self, dataset: Dataset, feed: Feed, **parts: Any) -> TrainLoop:
        return AsyncTrainLoop(self.strategy, dataset, feed, scheduler=self.scheduler, **parts)

    def evaluate(self, task: Task, dataset: Dataset, feed: Feed, num_parts: int = 1) -> EvalLoop:
        options: Any = {"scheduler": self.scheduler, "check": self.check}
        options |= {"task": task, "num_parts": num_parts}
        return AsyncEvalLoop(self.strategy, feed, dataset.transform, **options)

    def predict(self, predict: Predict, transform: Transform | None, feed: Feed) -> PredictLoop:
        options: Any = {"scheduler": self.scheduler, "check": self.check}
        return AsyncPredictLoop(self.strategy, feed, transform, predict=predict, **options)

    def feed(self, source: Source) -> Feed:
        if isinstance(source.split, Stream):
            raise ConfigError(
                "dataset.train is a stream, which is read from its start, and the workers of "
                "strategy=parameter_server train chunks of steps in any order; use another strategy"
            )
        kind = RemoteFeed if source.split.in_memory else RemotePipelineFeed
        return kind(source, self.scheduler.send)
