"""The compiled loops: many training steps, or a whole evaluation, inside one graph call.

    while i < count:                          # in the graph, outside the replicas: TensorFlow cannot update inside otherwise
        batch = feed.take(opened)
        strategy.run(replica_step, (step + i, batch))

The number of steps in a call changes no result: nothing inside depends on where a call begins. AutoGraph is off: converting
the engine's own code took most of the time to the first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import randomness
from trainer.collectives import CollectiveLog, Collectives
from trainer.guard import Trouble
from trainer.input import Feed, Source, feed
from trainer.protocols import Batch, Dataset, Metrics, Task
from trainer.state import TrainState
from trainer.step import Step, StepOptions, sums_of


class TrainLoop:
    """Runs training steps and adds their metrics to the state's sums.

    Attributes:
        strategy: TensorFlow's strategy.
        feed: how batches reach the replicas.
        state: what the steps move.
        collectives: what the replicas of this process communicate in a step; known when `run` has been traced.

    Args:
        schedule: the learning rate of a step.
        seed: the experiment's seed.
        poison: whether features are to be no numbers, for a rehearsal; None: they never are.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        task: Task,
        dataset: Dataset,
        feed: Feed,
        *,
        state: TrainState,
        options: StepOptions,
        schedule: Callable[[tf.Tensor], tf.Tensor],
        seed: int,
        poison: tf.Variable | None = None,
    ) -> None:
        self.strategy, self._task, self.state, self._dataset = strategy, task, state, dataset
        self.feed, self._options, self._schedule, self._seed = feed, options, schedule, seed
        self._poison = poison
        self.collectives = CollectiveLog()

    @tf.function(autograph=False)
    def run(self, opened: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Trouble]:
        """Runs `count` (scalar int64) steps.

        Returns:
            The sums of the summary window, [2 * metrics] float64, how many seconds the steps waited for their input, float64, and
            what the guard noted: if that names a step, the state is good for nothing.
        """
        state, guard = self.state, self.state.guard
        self.collectives = CollectiveLog()  # of this trace
        end = state.step.read_value() + count

        def one_step(
            index: tf.Tensor, window: tf.Tensor, epoch: tf.Tensor, norm: tf.Tensor, waited: tf.Tensor, trouble: Trouble
        ) -> tuple[Any, ...]:
            taken = self.feed.take(opened)
            if self.feed.fetches:
                # Before the step: TensorFlow keeps the order of operations that read the clock and the like.
                waited += input_wait(index, taken)
            # Added step by step: the order of additions, hence every bit, does not depend on the length of the loop.
            sums, finding = self._step(index, taken)
            norm = tf.where(finding[0] > 0.0, norm, finding[2])
            return index + 1, window + sums, epoch + sums, norm, waited, guard.note(trouble, index, finding)

        start = [variable.read_value() for variable in (state.step, state.window, state.epoch, state.gradient_norm)]
        _, window, epoch, norm, waited, trouble = tf.while_loop(
            lambda index, *_: index < end, one_step, (*start, tf.zeros([], tf.float64), guard.begin())
        )
        state.step.assign(end)
        state.window.assign(window)
        state.epoch.assign(epoch)
        state.gradient_norm.assign(norm)
        guard.end(trouble)
        return window, waited, trouble

    def trace(self, opened: Any) -> list[str]:
        """Traces the step without running it; gives its collectives in order, a line each."""
        self.run.get_concrete_function(opened, tf.TensorSpec([], tf.int64))
        return self.collectives.lines()

    def learning_rate(self, step: int) -> float:
        """Gives the learning rate of update number `step`, counted from 0."""
        return float(self._schedule(tf.constant(step, tf.int64)))

    def report(self) -> dict[str, float]:
        """Gives what else the log should tell: of the last step or call, or of the whole run."""
        norm = {"gradient_norm": float(self.state.gradient_norm.numpy())} if self._options.guard is not None else {}
        return {**norm, **self.state.guard.report()}

    def first_lines(self) -> Iterable[str]:
        """Gives what else the user should be told before the first step."""
        return ()

    def last_lines(self) -> Iterable[str]:
        """Gives what else the user should be told after the last step."""
        if dropped := self.state.guard.report():
            yield f"{dropped['updates_skipped']:.0f} updates were dropped (divergence.action=skip)."

    def _step(self, index: tf.Tensor, taken: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs one step.

        Returns:
            The sums of its metrics, [2 * metrics] float64, and what the guard found, [4] float32. Both are already reduced, so any
            replica's will do.
        """
        results = self.strategy.run(self._replica_step, args=(index, taken))
        numbers = self.strategy.experimental_local_results(results)[0]
        return tf.cast(numbers[:-4], tf.float64), numbers[-4:]

    @contextmanager
    def replica_batch(self, index: tf.Tensor, taken: Any) -> Iterator[Batch]:
        """Gives this replica's batch of step `index`, in replica context; what is traced inside has the randomness of that step."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        batch, draws = self.feed.give(taken, index, replica)
        with randomness.step_seed(lambda: randomness.fold_seed(self._seed, index, replica)):
            batch = {**batch, **self._dataset.transform(batch, draws)}
            yield batch if self._poison is None else poisoned(batch, self._poison)

    def _replica_step(self, index: tf.Tensor, taken: Any) -> tf.Tensor:
        with self.replica_batch(index, taken) as batch:
            step = Step(index, self._options, self.collectives)
            metrics = self._task.train_step(batch, step)
            step.end()
        self.state.update_averages(index, step.dropped)
        sums = pack(self._task, metrics)
        return tf.concat([tf.where(step.dropped, tf.zeros_like(sums), sums), step.finding], axis=0)


class EvalLoop:
    """Evaluates a whole split, each example exactly once, at a static batch shape."""

    def __init__(self, strategy: tf.distribute.Strategy, task: Task, dataset: Dataset, feed: Feed) -> None:
        self._strategy, self._task, self._dataset, self.feed = strategy, task, dataset, feed

    @tf.function(autograph=False)
    def run(self, opened: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Adds the sums of the batches [start, start + count) to `total`, [2 * metrics] float64, batch by batch."""
        return self._batches(opened, total, start, count)

    def _batches(self, opened: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        def one_batch(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            sums = self._strategy.run(self._replica_step, args=(index, self.feed.take(opened)))
            return index + 1, total + tf.cast(self._strategy.experimental_local_results(sums)[0], tf.float64)

        return tf.while_loop(lambda index, _: index < start + count, one_batch, (start, total))[1]

    def _replica_step(self, index: tf.Tensor, taken: Any) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        batch, _ = self.feed.give(taken, index, context.replica_id_in_sync_group)
        batch = {**batch, **self._dataset.transform(batch, None)}
        sums = pack(self._task, sums_of(*self._task.eval_step(batch), batch["weight"]))
        return sums if context.num_replicas_in_sync == 1 else context.all_reduce(tf.distribute.ReduceOp.SUM, sums)


class PredictLoop:
    """Predicts the examples of a split, at a static batch shape.

    A loop in the graph must know what it collects before its body is traced, and what a task predicts is known only then. So it
    collects strings: each tensor in TensorFlow's serialized form.
    """

    def __init__(self, strategy: tf.distribute.Strategy, task: Task, dataset: Dataset, feed: Feed) -> None:
        self._strategy, self._task, self._dataset, self.feed = strategy, task, dataset, feed
        self._types: dict[str, tf.DType] = {}
        self._collectives = CollectiveLog()

    def run(self, opened: Any, start: int, count: int) -> dict[str, np.ndarray]:
        """Gives the rows of the batches [start, start + count), those too that the last one is filled up with.

        Returns:
            Name -> [count * global batch, ...]: `id`, `weight`, `label` if the split has it, and the predictions.
        """
        batches = self._serialized(opened, start, count)
        columns = enumerate(self._types.items())
        return {name: np.concatenate([tf.io.parse_tensor(row[i], dtype).numpy() for row in batches]) for i, (name, dtype) in columns}

    def _serialized(self, opened: Any, start: int, count: int) -> tf.Tensor:
        return self._run(opened, tf.constant(start, tf.int64), tf.constant(count, tf.int64))

    @tf.function(autograph=False)
    def _run(self, opened: Any, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return self._batches(opened, start, count)

    def _batches(self, opened: Any, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Gives the batches [start, start + count), [count, names] string."""
        self._collectives = CollectiveLog()  # of this trace

        def one_batch(index: tf.Tensor, batches: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            results = self._strategy.run(self._replica_step, args=(index, self.feed.take(opened)))
            rows = {name: self._strategy.experimental_local_results(value)[0] for name, value in results.items()}
            self._types = {name: value.dtype for name, value in rows.items()}
            return index + 1, batches.write(tf.cast(index - start, tf.int32), tf.stack([tf.io.serialize_tensor(x) for x in rows.values()]))

        empty = tf.TensorArray(tf.string, size=tf.cast(count, tf.int32))
        return tf.while_loop(lambda index, _: index < start + count, one_batch, (start, empty))[1].stack()

    def _replica_step(self, index: tf.Tensor, taken: Any) -> Batch:
        """Gives the rows of all replicas, in order: every replica gets them."""
        batch, _ = self.feed.give(taken, index, tf.distribute.get_replica_context().replica_id_in_sync_group)
        batch = {**batch, **self._dataset.transform(batch, None)}
        known = {name: batch[name] for name in ("id", "weight", "label") if name in batch}
        gathered = Collectives(self._collectives).all_gather({**known, **self._task.predict_step(batch)})
        return {name: tf.reshape(rows, [-1, *rows.shape[2:]]) for name, rows in gathered.items()}


class Loops:
    """Makes the loops of a strategy whose replicas all run the same step together."""

    def __init__(self, strategy: tf.distribute.Strategy, *, input_outside: bool) -> None:
        self._strategy, self._outside = strategy, input_outside

    def train(self, task: Task, dataset: Dataset, source: Source, **parts: Any) -> TrainLoop:
        """Makes the loop over training steps; `parts` are those of `TrainLoop`."""
        return TrainLoop(self._strategy, task, dataset, feed(source, self._strategy, outside=self._outside), **parts)

    def evaluate(self, task: Task, dataset: Dataset, source: Source) -> EvalLoop:
        """Makes the loop over a split's batches."""
        return EvalLoop(self._strategy, task, dataset, feed(source, self._strategy, outside=self._outside))

    def predict(self, task: Task, dataset: Dataset, source: Source) -> PredictLoop:
        """Makes the loop over a split's batches that predicts their examples."""
        return PredictLoop(self._strategy, task, dataset, feed(source, self._strategy, outside=self._outside))


def poisoned(batch: Batch, poison: tf.Variable) -> Batch:
    """Makes everything in a batch that has a fraction, but the examples' weight, no number if `poison` holds."""
    fractions = {name: value for name, value in batch.items() if value.dtype.is_floating and name != "weight"}
    return {**batch, **{name: tf.where(poison, tf.cast(math.nan, value.dtype), value) for name, value in fractions.items()}}


def input_wait(index: tf.Tensor, taken: Any) -> tf.Tensor:
    """Gives how many seconds a step of the loop waited for what it takes, scalar float64.

    The executor fetches ahead, while the step before still runs. The index of a step, however, comes out of the step before when
    that has made all its updates: only what is still missing then is waited for.
    """
    with tf.control_dependencies([index]):
        free = tf.timestamp()
    with tf.control_dependencies(tf.nest.flatten(taken, expand_composites=True)):
        there = tf.timestamp()
    return tf.maximum(there - free, 0.0)


def pack(task: Task, metrics: Metrics) -> tf.Tensor:
    """Puts (sum, weight) of each of the task's metrics into one vector, [2 * metrics] float32.

    Raises:
        ValueError: the task gave other metrics than it declares.
    """
    if set(metrics) != set(task.metrics):
        raise ValueError(f"{type(task).__name__} declares the metrics {sorted(task.metrics)} but its step gave {sorted(metrics)}")
    return tf.stack([tf.cast(x, tf.float32) for name in task.metrics for x in metrics[name]])


def unpack(task: Task, sums: Any) -> dict[str, float]:
    """Gives the value of each metric from packed sums; NaN where the weight is zero."""
    values = [float(x) for x in sums]
    return {name: values[2 * i] / values[2 * i + 1] if values[2 * i + 1] else float("nan") for i, name in enumerate(task.metrics)}
