"""The compiled loops over a split, each example exactly once: sums of metrics, or predictions.

And what makes all loops of a strategy whose replicas run the same step together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog, Collectives
from trainer.engine.graph.input import feed as input_module
from trainer.engine.graph.input.feed import Feed, Source
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.randomness.randomness import evaluated_part, split_part
from trainer.engine.graph.step.accumulation import cut
from trainer.engine.graph.step.metric_sums import num_sums, pack, sums_of
from trainer.engine.graph.step.shard_tree import add
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step
from trainer.errors import ConfigError
from trainer.protocols import Batch, Dataset, PerExample, Task, TaskDefaults, paths, with_defaults

Predict: TypeAlias = Callable[[Batch], Mapping[str, tf.Tensor]]
"""Returns the predictions for one replica's batch, name -> [B, ...]."""
Transform: TypeAlias = Callable[[Batch, tf.Tensor | None], Batch]
"""Turns a fetched batch into the input of the prediction; a dataset's."""
Check: TypeAlias = Callable[[str], None]
"""Checks the graph whose tracing is about to end, by what it computes; see `GraphCheck`."""


@dataclass(eq=False, repr=False)
class SplitLoop:
    """Runs over the batches of a split, at a static batch shape.

    The last batch is filled up with examples of weight 0.
    """

    strategy: tf.distribute.Strategy
    feed: Feed
    transform: Transform | None
    _: KW_ONLY
    check: Check = lambda subject: None

    def __post_init__(self) -> None:
        self._log = CollectiveLog()

    @contextmanager
    def _prepared(self, index: tf.Tensor, batch: Batch) -> Iterator[Batch]:
        """Provide this replica's batch, transformed; what is traced inside draws by example."""
        context = tf.distribute.get_replica_context()
        with evaluated_part(index, context, int(batch["weight"].shape[0])):
            yield batch if self.transform is None else {**batch, **self.transform(batch, None)}


@dataclass(kw_only=True, eq=False, repr=False)
class EvalLoop(SplitLoop):
    """Sums the metrics of a task over a whole split.

    With a task that has `eval_part` the loop is for whole batches, and `rest` evaluates what
    remains.

    Attributes:
        in_order: whether the replicas' batches are added one after the other in the order of the
            split, so that the sum does not depend on the number of replicas.
        num_parts: in how many parts a replica evaluates its batch, one after the other; of a task
            with `eval_part`.
    """

    task: Task
    in_order: bool = False
    num_parts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._eval_part = with_defaults(self.task, TaskDefaults).eval_part

    @tf.function(autograph=False, reduce_retracing=False)
    def rest(self, batch: Batch, share: float, total: tf.Tensor) -> tf.Tensor:
        """Add the sums of a fraction of the examples to `total`; every replica has them all."""
        eval_part: Any = self._eval_part

        def evaluate(batch: Batch) -> tf.Tensor:
            index = tf.constant(0, tf.int64)
            with self._prepared(index, batch) as batch:
                step = Step(index, StepOptions(), self._log, evaluates=True)
                with step.on_part(True):
                    return pack(self.task, eval_part(batch, step, share, self._states(total)))

        self._log = CollectiveLog()
        results = self.strategy.run(evaluate, args=(batch,))
        sums = self.strategy.experimental_local_results(results)[0]
        self.check("the evaluation")
        return add(total, tf.cast(sums, tf.float64))

    @tf.function(autograph=False)
    def run(self, iterator: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Add the sums of the batches [start, start + count) to `total`, [num_sums] float64."""
        return self._batches(iterator, total, start, count)

    def _batches(
        self, iterator: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor
    ) -> tf.Tensor:
        self._log = CollectiveLog()  # of this trace

        def one_batch(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            element = self.feed.next(iterator)
            results = self.strategy.run(
                self._replica_step, args=(index, element, self._states(total))
            )
            sums = self.strategy.experimental_local_results(results)[0]
            for row in tf.unstack(sums) if self.in_order else [sums]:
                total = add(total, tf.cast(row, tf.float64))
            return index + 1, total

        total = tf.while_loop(lambda index, _: index < start + count, one_batch, (start, total))[1]
        self.check("the evaluation")
        return total

    def _states(self, total: tf.Tensor) -> tf.Tensor:
        """Return the states in packed sums, [num_states] float32."""
        return tf.cast(total[2 * len(self.task.metrics) :], tf.float32)

    def _replica_step(self, index: tf.Tensor, element: Any, states: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        batch, _ = self.feed.replica_batch(element, index, context.replica_id_in_sync_group)
        with self._prepared(index, batch) as batch:
            if self._eval_part is not None:
                sums = self._sums_of_parts(batch, index, states)
            else:
                sums = pack(self.task, sums_of(*self._evaluate(batch, index), batch["weight"]))
        if self.in_order:
            rows = Collectives(CollectiveLog()).all_gather(sums)
            return tf.reshape(rows, [-1, rows.shape[-1]])
        if sums.shape.rank == 2:
            sums = tf.reduce_sum(sums, axis=0)
        if context.num_replicas_in_sync == 1:
            return sums
        return context.all_reduce(tf.distribute.ReduceOp.SUM, sums)

    def _sums_of_parts(self, batch: Batch, index: tf.Tensor, states: tf.Tensor) -> tf.Tensor:
        """Return what each part of this replica's batch adds, [num_parts, num_sums]."""
        evaluate: Any = self._eval_part
        step = Step(index, StepOptions(), self._log, evaluates=True)
        share = 1.0 / (self.num_parts * step.num_replicas)
        if self.num_parts == 1:
            sums = pack(self.task, evaluate(batch, step, share, states))[None]
        else:
            part, enter = cut(batch, self.num_parts), split_part(self.num_parts)

            def one(number: tf.Tensor) -> tf.Tensor:
                with enter(number), step.on_part(True):
                    return pack(self.task, evaluate(part(number), step, share, states))

            spec = tf.TensorSpec([num_sums(self.task)], tf.float32)
            sums = tf.map_fn(one, tf.range(self.num_parts), fn_output_signature=spec)
        step.end()
        return sums

    def _evaluate(self, batch: Batch, index: tf.Tensor) -> PerExample:
        """Call the task's `eval_step`, with a step to communicate in if it takes one."""
        evaluate: Any = self.task.eval_step
        if "step" not in inspect.signature(evaluate).parameters:
            return evaluate(batch)
        step = Step(index, StepOptions(), self._log, evaluates=True)
        with step.on_part(self.in_order):
            result = evaluate(batch, step=step)
        step.end()
        return result


@dataclass(kw_only=True, eq=False, repr=False)
class PredictLoop(SplitLoop):
    """Predicts the examples of a split.

    A loop in the graph must declare what it collects before its body is traced, and what a task
    predicts is known only then. So it collects strings: each tensor in TensorFlow's serialized
    form.
    """

    predict: Predict

    def __post_init__(self) -> None:
        super().__post_init__()
        self._types: dict[str, tf.DType] = {}

    def run(self, iterator: Any, start: int, count: int) -> dict[str, np.ndarray]:
        """Predict the batches [start, start + count), the padding of the last one included.

        Returns:
            Name -> [count * global batch, ...]: `id`, `weight`, `label` if the split has it (of
            several numbers `label_<key>` each), and the predictions.
        """
        batches = self._serialized(iterator, start, count)
        columns = enumerate(self._types.items())
        return {
            name: np.concatenate([tf.io.parse_tensor(row[i], dtype).numpy() for row in batches])
            for i, (name, dtype) in columns
        }

    def _serialized(self, iterator: Any, start: int, count: int) -> tf.Tensor:
        return self._run(iterator, tf.constant(start, tf.int64), tf.constant(count, tf.int64))

    @tf.function(autograph=False)
    def _run(self, iterator: Any, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return self._batches(iterator, start, count)

    def _batches(self, iterator: Any, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Predict the batches [start, start + count); return [count, names] string."""
        self._log = CollectiveLog()  # of this trace

        def one_batch(
            index: tf.Tensor, batches: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.TensorArray]:
            results = self.strategy.run(self._replica_step, args=(index, self.feed.next(iterator)))
            rows = {
                name: self.strategy.experimental_local_results(value)[0]
                for name, value in results.items()
            }
            self._types = {name: value.dtype for name, value in rows.items()}
            serialized = tf.stack([tf.io.serialize_tensor(x) for x in rows.values()])
            return index + 1, batches.write(tf.cast(index - start, tf.int32), serialized)

        empty = tf.TensorArray(tf.string, size=tf.cast(count, tf.int32))
        _, batches = tf.while_loop(
            lambda index, _: index < start + count, one_batch, (start, empty)
        )
        self.check("the prediction")
        return batches.stack()

    def _replica_step(self, index: tf.Tensor, element: Any) -> Batch:
        """Return the rows of all replicas, in order: every replica gets them."""
        context = tf.distribute.get_replica_context()
        batch, _ = self.feed.replica_batch(element, index, context.replica_id_in_sync_group)
        with self._prepared(index, batch) as batch:
            predictions = self.predict(batch)
        if texts := [name for name, value in predictions.items() if value.dtype == tf.string]:
            raise ConfigError(
                f"predict_step returns texts ({', '.join(texts)}); return numbers, such as the "
                "index of each text in a list"
            )
        inputs = {name: batch[name] for name in ("id", "weight")}
        label = batch.get("label", {})
        leaves = zip(paths(label, "label", "_"), tf.nest.flatten(label), strict=True)
        labels = {name: value for name, value in leaves if value.dtype != tf.string}
        return Collectives(self._log).gather_rows({**inputs, **labels, **predictions})


@dataclass(eq=False, repr=False)
class Loops:
    """Creates the compiled loops.

    Attributes:
        input_outside: whether replicas cannot gather their batches themselves.
        in_order: whether evaluations add up batches in the order of the split.
        in_sequence: whether an evaluation sees its batches one after the other.
    """

    strategy: tf.distribute.Strategy
    _: KW_ONLY
    input_outside: bool
    in_order: bool = False
    check: Check = lambda subject: None
    in_sequence: ClassVar[bool] = True

    def feed(self, source: Source) -> Feed:
        """Choose how the batches of a source reach the replicas."""
        return input_module.feed(source, self.strategy, outside=self.input_outside)

    def train(self, dataset: Dataset, feed: Feed, **parts: Any) -> TrainLoop:
        """Create the loop over training steps; `parts` are those of `TrainLoop`."""
        return TrainLoop(self.strategy, dataset, feed, **parts)

    def evaluate(self, task: Task, dataset: Dataset, feed: Feed, num_parts: int = 1) -> EvalLoop:
        """Create the loop that evaluates the batches of a split, as `EvalLoop` does."""
        options: Any = {"in_order": self.in_order, "num_parts": num_parts, "check": self.check}
        return EvalLoop(self.strategy, feed, dataset.transform, task=task, **options)

    def predict(self, predict: Predict, transform: Transform | None, feed: Feed) -> PredictLoop:
        """Create the loop that predicts the batches of a split."""
        return PredictLoop(self.strategy, feed, transform, predict=predict, check=self.check)
