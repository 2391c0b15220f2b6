"""The compiled evaluation loop: the metrics of a whole split."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog, Collectives
from trainer.engine.graph.input.feed import Feed
from trainer.engine.graph.randomness.randomness import evaluated_part, split_part
from trainer.engine.graph.step.metric_sums import num_sums, pack, sums_of
from trainer.engine.graph.step.shard_tree import add
from trainer.engine.graph.step.shards import cut
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step
from trainer.protocols import Batch, Dataset, PerExample, Task, TaskDefaults, with_defaults


class EvalLoop:
    """Evaluates a whole split, each example exactly once, at a static batch shape.

    The last batch of a split is filled up with examples of weight 0. Not so with a task that has
    `eval_part`: the loop is for whole batches then, and `rest` evaluates what remains.

    Attributes:
        check: as in `TrainLoop`.

    Args:
        in_order: whether the replicas' batches are added one after the other in the order of the
            split, so that the sum does not depend on the number of replicas.
        parts: in how many parts a replica evaluates its batch, one after the other; of a task with
            `eval_part`.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        task: Task,
        dataset: Dataset,
        feed: Feed,
        *,
        in_order: bool = False,
        parts: int = 1,
    ) -> None:
        self._in_order = in_order
        self._strategy = strategy
        self._task = task
        self._dataset = dataset
        self.feed = feed
        self._log = CollectiveLog()
        self._parts = parts
        self._eval_part = with_defaults(task, TaskDefaults).eval_part
        self.check: Callable[[str], None] = lambda subject: None

    @tf.function(autograph=False, reduce_retracing=False)
    def rest(self, batch: Batch, share: float, total: tf.Tensor) -> tf.Tensor:
        """Add the sums of some examples to `total`, [num_sums] float64; every replica has them all.

        Args:
            batch: what the dataset has fetched of them.
            share: the share of the examples that are evaluated together.
        """
        eval_part: Any = self._eval_part

        def evaluate(batch: Batch) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            with evaluated_part(tf.constant(0, tf.int64), context, int(batch["weight"].shape[0])):
                batch = {**batch, **self._dataset.transform(batch, None)}
                step = Step(tf.constant(0, tf.int64), StepOptions(), self._log, evaluates=True)
                with step.on_part(True):
                    return pack(self._task, eval_part(batch, step, share, self._states(total)))

        self._log = CollectiveLog()
        results = self._strategy.run(evaluate, args=(batch,))
        sums = self._strategy.experimental_local_results(results)[0]
        self.check("the evaluation")
        return add(total, tf.cast(sums, tf.float64))

    @tf.function(autograph=False)
    def run(self, iterator: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Add the sums of the batches [start, start + count) to `total`, batch by batch.

        Args:
            total: [num_sums] float64.
            start: the first batch, scalar int64.
            count: number of batches, scalar int64.
        """
        return self._batches(iterator, total, start, count)

    def _batches(
        self, iterator: Any, total: tf.Tensor, start: tf.Tensor, count: tf.Tensor
    ) -> tf.Tensor:
        self._log = CollectiveLog()  # of this trace

        def one_batch(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            element = self.feed.next(iterator)
            results = self._strategy.run(
                self._replica_step, args=(index, element, self._states(total))
            )
            sums = self._strategy.experimental_local_results(results)[0]
            for row in tf.unstack(sums) if self._in_order else [sums]:
                total = add(total, tf.cast(row, tf.float64))
            return index + 1, total

        total = tf.while_loop(lambda index, _: index < start + count, one_batch, (start, total))[1]
        self.check("the evaluation")
        return total

    def _states(self, total: tf.Tensor) -> tf.Tensor:
        """Return the states in packed sums, [num_states] float32."""
        return tf.cast(total[2 * len(self._task.metrics) :], tf.float32)

    def _replica_step(self, index: tf.Tensor, element: Any, states: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        batch, _ = self.feed.replica_batch(element, index, context.replica_id_in_sync_group)
        with evaluated_part(index, context, int(batch["weight"].shape[0])):
            batch = {**batch, **self._dataset.transform(batch, None)}
            if self._eval_part is not None:
                sums = self._sums_of_parts(batch, index, states)
            else:
                sums = pack(self._task, sums_of(*self._evaluate(batch, index), batch["weight"]))
        if self._in_order:
            rows = Collectives(CollectiveLog()).all_gather(sums)
            return tf.reshape(rows, [-1, rows.shape[-1]])
        if sums.shape.rank == 2:
            sums = tf.reduce_sum(sums, axis=0)
        if context.num_replicas_in_sync == 1:
            return sums
        return context.all_reduce(tf.distribute.ReduceOp.SUM, sums)

    def _sums_of_parts(self, batch: Batch, index: tf.Tensor, states: tf.Tensor) -> tf.Tensor:
        """Return what each part of this replica's batch adds, [parts, num_sums]."""
        evaluate: Any = self._eval_part
        step = Step(index, StepOptions(), self._log, evaluates=True)
        share = 1.0 / (self._parts * step.num_replicas)
        if self._parts == 1:
            sums = pack(self._task, evaluate(batch, step, share, states))[None]
        else:
            part, enter = cut(batch, self._parts), split_part(self._parts)

            def one(number: tf.Tensor) -> tf.Tensor:
                with enter(number), step.on_part(True):
                    return pack(self._task, evaluate(part(number), step, share, states))

            spec = tf.TensorSpec([num_sums(self._task)], tf.float32)
            sums = tf.map_fn(one, tf.range(self._parts), fn_output_signature=spec)
        step.end()
        return sums

    def _evaluate(self, batch: Batch, index: tf.Tensor) -> PerExample:
        """Call the task's `eval_step`, with a step to communicate in if it takes one."""
        evaluate: Any = self._task.eval_step
        if "step" not in inspect.signature(evaluate).parameters:
            return evaluate(batch)
        step = Step(index, StepOptions(), self._log, evaluates=True)
        with step.on_part(self._in_order):
            result = evaluate(batch, step=step)
        step.end()
        return result
