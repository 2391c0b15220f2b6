"""Steps that are handed out: the chief schedules chunks of steps, and whichever worker is free runs the next one.

A chunk is (first step, number of steps) and nothing else: the samples of a step follow from its number, so a chunk that a
dying worker left half done is run again by another on the same samples. Steps are counted when their chunk is complete, so
the count is exact; what a lost worker had begun already is applied twice, and is reported.

Nothing that is still needed stays on a worker: what a chunk comes to is written to the parameter servers before it counts as
complete, for the worker may be gone when its chunk is done but others of the same call are not.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import NonFiniteError
from trainer.guard import ADVICE, Trouble
from trainer.input import Source
from trainer.loop import EvalLoop, Loops, PredictLoop, TrainLoop, unpack
from trainer.protocols import Dataset, Task
from trainer.shipping import Prefetched, Shipped

_CHUNKS_PER_WORKER = 4  # in one call: the last to finish keeps the others waiting for a quarter of their time at most
_CHUNK_SECS = 0.15  # but none shorter than this: to hand one out takes some 10 ms


class Board:
    """Where the chunks of a loop write what they came to: one row of a variable on a parameter server for each chunk of a call.

    Attributes:
        rows: the variable, [chunks, width] float64, or of another type.
        step_secs: how long a step took in the last call, all workers taken together; 0 before the first.
    """

    def __init__(self, chunks: int, width: int, dtype: tf.DType) -> None:
        self.rows = tf.Variable(tf.zeros([chunks, width], dtype), trainable=False, name="board")
        self.step_secs = 0.0

    def write(self, row: tf.Tensor, values: tf.Tensor) -> None:
        """Writes a row, [width]; its number is a scalar."""
        self.rows.scatter_update(tf.IndexedSlices(values[None], row[None]))


class Workers:
    """The workers that chunks are handed out to.

    Attributes:
        count: how many there are.
    """

    def __init__(self, strategy: tf.distribute.Strategy, count: int) -> None:
        self._strategy, self.count = strategy, count
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def send(self, tensors: list[tf.Tensor]) -> Any:
        """Sends every worker these tensors, once; a chunk takes them from the iterator that is returned."""

        def elements() -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(tuple(tensors)).repeat()

        return iter(self._coordinator.create_per_worker_dataset(elements))

    def board(self, width: int, dtype: tf.DType = tf.float64) -> Board:
        """Makes a board with a row for each chunk of a call."""
        with self._strategy.scope():
            return Board(self.count * _CHUNKS_PER_WORKER, width, dtype)

    def run(self, chunk: Callable[..., Any], opened: Any, board: Board, start: int, count: int) -> list[tuple[int, int, np.ndarray]]:
        """Runs the steps [start, start + count), each once.

        Args:
            chunk: a tf.function of (opened, row of the board, first step, number of steps), the last three int64.
            opened: what each worker was sent.
            board: where the chunks write what they came to.
            start: the first step.
            count: how many steps.

        Returns:
            For each chunk, in order, its first step, its number of steps and what it wrote.

        Raises:
            tf.errors.UnavailableError: a parameter server was lost. The loss of a worker is made up for.
        """
        began, secs = time.monotonic(), board.step_secs * count
        number = min(count, self.count * min(_CHUNKS_PER_WORKER, max(1, int(secs / _CHUNK_SECS))))
        bounds = [start + count * row // number for row in range(number + 1)]
        pieces = [(first, end - first) for first, end in itertools.pairwise(bounds)]
        for row, (first, size) in enumerate(pieces):
            self._coordinator.schedule(chunk, args=(opened, *(tf.constant(value, tf.int64) for value in (row, first, size))))
        self._coordinator.join()
        board.step_secs = (time.monotonic() - began) / count
        return [(first, size, values) for (first, size), values in zip(pieces, board.rows.numpy(), strict=False)]


class ChunkedTrainLoop(TrainLoop):
    """Runs training steps on the workers, each step on one of them, all against the same variables."""

    feed: Shipped

    def __init__(self, *args: Any, workers: Workers, **options: Any) -> None:
        super().__init__(*args, **options)
        self._workers, self._board = workers, workers.board(2 * len(self._task.metrics) + 3)
        with self.strategy.scope():
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False, name="begun")
        self._report: dict[str, float] = {}

    def run(self, opened: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Trouble]:
        """Runs `count` (scalar int64) steps; returns as `TrainLoop.run` does, but that waiting for input is not measured: zero.

        Raises:
            NonFiniteError: a sum of the metrics is not finite.
        """
        state, count = self.state, int(count)
        start, begun = int(state.step.numpy()), int(self._begun.numpy())
        chunks = self._workers.run(self._chunk, opened, self._board, start, count)
        self._describe(chunks, self._board.step_secs * count)
        window, epoch = state.window.numpy(), state.epoch.numpy()
        for first, size, (*sums, _, _, _) in chunks:
            self.feed.judge(first, size, sums[1])
            if not np.isfinite(sums).all():
                loss = unpack(self._task, sums)["loss"]
                raise NonFiniteError(f"the loss became {loss} within steps {first} to {first + size - 1}; {ADVICE}")
            window, epoch = window + sums, epoch + sums
        state.repeated.assign_add(int(self._begun.numpy()) - begun - count)
        state.step.assign(start + count)
        state.window.assign(window)
        state.epoch.assign(epoch)
        return tf.constant(window), tf.zeros([], tf.float64), state.guard.begin()

    def report(self) -> dict[str, float]:
        """Gives what is particular to steps that are handed out, for the log: of the last call, `steps_repeated` of the whole run."""
        return {**super().report(), **self._report, "steps_repeated": float(self.state.repeated.numpy())}

    def first_lines(self) -> Iterable[str]:
        """Says what each parameter server holds."""
        held: dict[int, list[int]] = {}
        for variable in self.state.variables().values():
            place = tf.DeviceSpec.from_string(variable.device)
            held.setdefault(place.task, []).append(variable.shape.num_elements() * variable.dtype.size)
        for task, sizes in sorted(held.items()):
            yield f"ps-{task} holds {sum(sizes) / 1e6:.2f} MB in {len(sizes)} variables"

    def last_lines(self) -> Iterable[str]:
        """Says what the loss of workers came to."""
        if repeated := int(self.state.repeated.numpy()):
            yield f"{repeated} steps were begun a second time, because the worker that ran them was lost."

    def _describe(self, chunks: list[tuple[int, int, np.ndarray]], secs: float) -> None:
        steps: Counter[int] = Counter()
        for _, size, (*_, worker, _, _) in chunks:
            steps[int(worker)] += size
        self._report = {f"worker_{worker}_steps_per_sec": steps[worker] / secs for worker in range(self._workers.count)}
        self._report["staleness_mean"] = sum(values[-2] for _, _, values in chunks) / steps.total()
        self._report["staleness_max"] = max(values[-1] for _, _, values in chunks)

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        """Runs a chunk of steps on one worker.

        Writes the sums of their metrics, the worker's number, and staleness: how many steps others began between the beginning
        of a step and its update; its sum over the steps and its maximum.
        """
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        opened = self.feed.open(next(iterator), start, count)
        # One operation, so that what comes after it comes after all of its updates too.
        step = tf.function(lambda index: self._step(index, self.feed.take(opened))[0], autograph=False)

        def one_step(index: tf.Tensor, sums: tf.Tensor, stale: tf.Tensor, stalest: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.control_dependencies([self._begun.assign_add(1, read_value=False)]):
                before = self._begun.read_value()
            with tf.control_dependencies([before]):
                new = step(index)
            with tf.control_dependencies([new]):
                others = self._begun.read_value() - before
            return index + 1, sums + new, stale + others, tf.maximum(stalest, others)

        zero = tf.constant(0, tf.int64)
        first = (start, tf.zeros([2 * len(self._task.metrics)], tf.float64), zero, zero)
        _, sums, stale, stalest = tf.while_loop(lambda index, *_: index < start + count, one_step, first, parallel_iterations=1)
        numbers = tf.stack([tf.cast(x, tf.float64) for x in (worker, stale, stalest)])
        self._board.write(row, tf.concat([sums, numbers], axis=0))


class ChunkedEvalLoop(EvalLoop):
    """Evaluates on the workers. A batch that is evaluated twice counts once: a chunk's sums replace those of an earlier try."""

    feed: Shipped

    def __init__(self, *args: Any, workers: Workers) -> None:
        super().__init__(*args)
        self._workers, self._board = workers, workers.board(2 * len(self._task.metrics))

    def run(self, opened: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Adds the sums of the batches [start, start + count) to `total`, [2 * metrics] float64."""
        for first, size, sums in self._workers.run(self._chunk, opened, self._board, int(start), int(count)):
            self.feed.judge(first, size, sums[1])
            total += sums
        return total

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        opened = self.feed.open(next(iterator), start, count)
        self._board.write(row, self._batches(opened, tf.zeros([2 * len(self._task.metrics)], tf.float64), start, count))


class ChunkedPredictLoop(PredictLoop):
    """Predicts on the workers. What a chunk writes replaces what an earlier try of it wrote."""

    feed: Shipped

    def __init__(self, *args: Any, workers: Workers) -> None:
        super().__init__(*args)
        self._workers, self._board = workers, workers.board(1, tf.string)

    def run(self, opened: Any, start: int, count: int) -> dict[str, np.ndarray]:
        """Gives the rows of the batches [start, start + count), as `PredictLoop.run` does."""
        rows = super().run(opened, start, count)
        self.feed.judge(start, count, float(rows["weight"].sum()))
        return rows

    def _serialized(self, opened: Any, start: int, count: int) -> tf.Tensor:
        chunks = self._workers.run(self._chunk, opened, self._board, start, count)
        return tf.concat([tf.io.parse_tensor(batches, tf.string) for _, _, (batches,) in chunks], axis=0)

    @tf.function(autograph=False)
    def _chunk(self, iterator: Any, row: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> None:
        opened = self.feed.open(next(iterator), start, count)
        self._board.write(row, tf.io.serialize_tensor(self._batches(opened, start, count))[None])


class ChunkedLoops(Loops):
    """Makes the loops of a strategy whose chief hands out steps."""

    def __init__(self, strategy: tf.distribute.Strategy, workers: Workers) -> None:
        self._strategy, self._workers = strategy, workers

    def train(self, task: Task, dataset: Dataset, source: Source, **parts: Any) -> TrainLoop:
        """Makes the loop over training steps; `parts` are those of `TrainLoop`."""
        return ChunkedTrainLoop(self._strategy, task, dataset, self._feed(source), workers=self._workers, **parts)

    def evaluate(self, task: Task, dataset: Dataset, source: Source) -> EvalLoop:
        """Makes the loop over a split's batches."""
        return ChunkedEvalLoop(self._strategy, task, dataset, self._feed(source), workers=self._workers)

    def predict(self, task: Task, dataset: Dataset, source: Source) -> PredictLoop:
        """Makes the loop over a split's batches that predicts their examples."""
        return ChunkedPredictLoop(self._strategy, task, dataset, self._feed(source), workers=self._workers)

    def _feed(self, source: Source) -> Shipped:
        return (Shipped if source.split.resident else Prefetched)(source, self._workers.send)
