"""A step on one replica: gradients, one reduction over the replicas, clipping, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog, Collectives, reshaped
from trainer.engine.graph.placement.step_devices import on_own_device
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.randomness.draws import static_shape
from trainer.engine.graph.step.accumulation import Contribution, accumulate_gradients, forward_parts
from trainer.engine.graph.step.assignments import MovingStatistics, notes_updates, soft_update
from trainer.engine.graph.step.metric_sums import Sums, flat_sums, restored_sums, sizes_of
from trainer.engine.graph.step.row_gradients import (
    allow_reads,
    combine,
    for_optimizer,
    in_order,
    is_finite,
    own_shares,
    reunited,
    scaled,
    unite,
)
from trainer.engine.graph.step.shard_tree import add_all, tree_sum
from trainer.engine.graph.step.step_options import Gradients, Optimizer, StepOptions
from trainer.engine.graph.step.update_check import clip, no_verdict
from trainer.errors import ConfigError
from trainer.protocols import Batch, LossFn, Metrics, OptimizerDefaults, with_defaults


class Step(Collectives):
    """What a task's steps may use. Created for each replica while the step is traced.

    Attributes:
        verdict: the verdict on the first update that is bad, or else on the last update.
        dropped: whether an update was dropped, bool scalar.

    Args:
        evaluates: whether it is a step of an evaluation, which may not update a model.
    """

    def __init__(
        self, index: tf.Tensor, options: StepOptions, log: CollectiveLog, *, evaluates: bool = False
    ) -> None:
        super().__init__(log)
        self.index = index
        self.options = options
        self._evaluates = evaluates
        self.worker: int | tf.Tensor = 0
        if self.num_replicas > 1:  # without a strategy there are no devices to count
            num_devices = len(self._context.strategy.extended.worker_devices)
            self.worker = self.replica // max(1, num_devices)
        self._updates: dict[int, tuple[Optimizer, int]] = {}
        self.verdict = no_verdict()
        self.dropped = tf.constant(False)

    def minimize(
        self, loss_fn: LossFn, batch: Batch, model: tf.keras.Model, optimizer: Optimizer
    ) -> Metrics:
        """Update a model once with the gradient of the global batch's mean loss.

        Gradients and metrics travel in one reduction; the gradient is clipped after it, so clipping
        does not depend on the number of replicas. Regularization losses of the model count once,
        and are not in the `loss` that is returned.
        """
        self._refuse_in_evaluation("minimize")
        self._count(optimizer)
        noted = notes_updates(model)
        statistics = MovingStatistics(model, self.options, self.num_replicas, noted)
        # Once: other workers may change it before this update is made.
        loss_scale = self.options.loss_scale
        scale = None if loss_scale is None else loss_scale.value.read_value()
        own = accumulate_gradients(loss_fn, batch, model, self.options, self, scale)
        gradients, (packed, *totals) = self.sum_over_replicas(
            self._to_sum(own, model, optimizer),
            [flat_sums(own.sums), *statistics.to_sum(own.updated, own.updates)],
        )
        if scale is not None:
            gradients = scaled(gradients, 1.0 / scale)
        reduced = restored_sums(packed, sizes_of(own.sums))
        self._apply(optimizer, model.trainable_variables, gradients, reduced)
        statistics.assign(totals, self.dropped)
        return reduced

    @property
    def num_parts(self) -> int:
        return self.options.passes(self.num_replicas)

    def forward(self, fn: Callable[[Batch], Any], batch: Batch, model: tf.keras.Model) -> Any:
        return forward_parts(fn, batch, model, self.options, self.num_replicas)

    def update_together(
        self,
        optimizer: Optimizer,
        variables: list[tf.Variable],
        parts: Sequence[Gradients],
        losses: Sequence[tf.Tensor],
        *,
        is_sum: bool = False,
    ) -> None:
        """Update variables by the mean of the gradients of all equal parts of the global batch.

        Args:
            parts: the gradients of each part on this replica, in order.
            losses: what each was derived from, float32 scalars.
            is_sum: whether it is their sum instead, and that of the losses.
        """
        self._count(optimizer)
        own = tree_sum([[*gradients, loss] for gradients, loss in zip(parts, losses, strict=True)],
                       add_all)  # fmt: skip
        count = 1 if is_sum else len(parts) * self.num_replicas
        gradients, (loss,) = self.sum_over_replicas(own[:-1], [own[-1]])
        if count > 1:
            gradients = scaled(gradients, 1.0 / count)
        sums = {"loss": (loss, tf.constant(float(count)))}
        self._apply(optimizer, variables, gradients, sums)

    def end_statistics(
        self, statistics: MovingStatistics, own: Contribution
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Average moving statistics over all replicas; return the sums of the metrics over them."""
        kept = statistics.to_sum(own.updated, own.updates)
        packed, *totals = self.sum_exactly([flat_sums(own.sums), *kept])
        statistics.assign(totals, self.dropped)
        return restored_sums(packed, sizes_of(own.sums))

    def soft_update(
        self, target: tf.keras.Model, source: tf.keras.Model, tau: float | tf.Tensor
    ) -> None:
        self._refuse_in_evaluation("soft_update")
        soft_update(self._context, target, source, tau, self.dropped)

    def end(self) -> None:
        """Note that the step is over; refuse another number of updates than was planned."""
        super().end()
        for optimizer, count in self._updates.values():
            expected = with_defaults(optimizer, OptimizerDefaults).updates_per_step
            if expected is not None and count != expected:
                raise ConfigError(
                    f"task: an optimizer ({type(optimizer).__name__}) made {count} "
                    f"update{'s' * (count > 1)} in a step, but was built for {expected}, so its "
                    "learning rate would not follow the steps; write "
                    f"parts.optimizer(..., updates_per_step={count})"
                )

    def _refuse_in_evaluation(self, name: str) -> None:
        if self._evaluates:
            raise ConfigError(
                f"task: eval_step calls step.{name}, but an evaluation updates no model; "
                "call it in train_step"
            )

    def _count(self, optimizer: Optimizer) -> None:
        _, count = self._updates.get(id(optimizer), (None, 0))
        self._updates[id(optimizer)] = (optimizer, count + 1)

    def _to_sum(self, own: Contribution, model: tf.keras.Model, optimizer: Optimizer) -> Gradients:
        """Return this replica's gradients; in rows only where that pays."""
        if self.options.passes(self.num_replicas) > 1:
            return own.gradients
        variables = model.trainable_variables
        return for_optimizer(own.gradients, variables, optimizer, self.options.note_rows)

    def sum_over_replicas(
        self, gradients: Gradients, others: list[tf.Tensor]
    ) -> tuple[Gradients, list[tf.Tensor]]:
        """Sum float32 tensors over the replicas as one flat buffer: a single collective.

        Gradients in rows need one more before it: replicas exchange which rows they have.

        Args:
            gradients: may be rounded on the way, if the strategy's exchange compresses them. Those
                in rows have each index once afterwards.
            others: are never rounded.
        """
        if self.num_replicas == 1:
            # The norm is the same on all layouts if rows are in one order; one pass has one layout.
            unique = combine if self.options.passes(1) == 1 else in_order
            return [on_own_device(unique, x) for x in gradients], others
        number = self._context.replica_id_in_sync_group
        static = getattr(self.options.exchange, "static_shapes", True)
        tensors, united = unite(
            gradients, number, self.num_replicas, self.sum_exactly, static_shapes=static
        )
        timer = self.options.exchange_timer
        if timer is None:
            summed, others = self._exchange(tensors, others)
        else:
            inputs = [*tensors, *others]
            summed, others = timer.measure(inputs, lambda: self._exchange(tensors, others))
        return reunited(summed, united), others

    def sum_exactly(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sum float32 tensors over the replicas, none of them rounded on the way."""
        return self.sum_over_replicas([], tensors)[1]

    def _exchange(
        self, gradients: list[tf.Tensor], others: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        if self.options.exchange is not None:
            self.note(f"the sum of {len(gradients)} gradients")
            return self.options.exchange(self._context, gradients, others)
        summed = self.all_reduce([*gradients, *others])
        return summed[: len(gradients)], summed[len(gradients) :]

    def _apply(
        self, optimizer: Optimizer, variables: list[tf.Variable], gradients: Gradients, sums: Sums
    ) -> None:
        """Judge the update, and make it unless it is to be dropped."""
        loss_scale = self.options.loss_scale
        monitor = self.options.divergence_monitor
        conditions = []  # of the update: all of them
        if loss_scale is not None:
            finite = [on_own_device(is_finite, gradient) for gradient in gradients]
            conditions.append(tf.reduce_all(finite))
        norm = tf.linalg.global_norm(gradients)
        if monitor is not None:
            # With a loss scale, gradients that are not finite are to be expected.
            judged = norm if loss_scale is None else tf.where(tf.math.is_finite(norm), norm, 0.0)
            verdict = monitor.check(optimizer, *sums["loss"], judged)
            if loss_scale is not None:
                verdict = verdict._replace(norm=tf.where(verdict.is_bad, judged, norm))
            self.verdict = self.verdict.where(self.verdict.is_bad, verdict)
            if monitor.skips:
                self.dropped = self.verdict.is_bad
        gradients = clip(gradients, norm, variables, optimizer, self.options.clip)
        if monitor is not None and monitor.skips:
            conditions.append(tf.logical_not(self.dropped))
        if conditions:
            self._update_if(tf.reduce_all(conditions), optimizer, variables, gradients)
        else:
            self.update(optimizer, variables, gradients)
        if loss_scale is not None:
            # The scale is not to blame for a bad loss.
            loss_scale.update(conditions[0] | self.dropped)

    def _update_if(
        self,
        condition: tf.Tensor,
        optimizer: Optimizer,
        variables: list[tf.Variable],
        gradients: Gradients,
    ) -> None:
        # A variable may not be updated under a condition inside a replica, so the condition is
        # moved out of the replicas. It is the same for all of them: the gradients are reduced.
        def cross_replica(
            strategy: tf.distribute.Strategy, condition: Any, *gradients: Any
        ) -> tf.Tensor:
            condition = strategy.experimental_local_results(condition)[0]

            def update() -> tf.Tensor:
                strategy.extended.call_for_each_replica(
                    lambda *own: self.update(optimizer, variables, own), args=gradients
                )
                return tf.constant(True)

            return tf.cond(condition, update, lambda: tf.constant(False))

        self._context.merge_call(cross_replica, args=(condition, *gradients))

    def update(
        self, optimizer: Optimizer, variables: list[tf.Variable], gradients: Gradients
    ) -> None:
        """Update variables by gradients that are the same on all replicas."""
        gradients = for_optimizer(gradients, variables, optimizer, self.options.note_rows)
        if self.options.optimizer_reduces:
            is_first = tf.equal(self._context.replica_id_in_sync_group, 0)
            in_tree = self.options.shards is not None
            gradients = own_shares(gradients, is_first, self.num_replicas, in_tree=in_tree)
        optimizer.apply_gradients(
            zip(gradients, variables, strict=True),
            experimental_aggregate_gradients=self.options.optimizer_reduces,
        )
        if not self.options.optimizer_reduces:
            allow_reads(gradients, variables)

    def split(self, batch: Batch, count: int) -> list[Batch]:
        size = int(batch["weight"].shape[0])
        if size % count:
            raise ConfigError(
                f"task: {size} examples on each of {self.num_replicas} replicas cannot be split "
                f"into {count} equal parts; change batch.global_size"
            )
        cut = tf.nest.map_structure(
            lambda x: reshaped(x, [size // count, count], x, start=1), batch
        )
        return [
            tf.nest.map_structure(lambda x, number=number: x[:, number], cut)
            for number in range(count)
        ]

    def random_normal(self, shape: Sequence[int], dtype: Any = tf.float32) -> tf.Tensor:
        with _part_of(shape):
            return tf.random.normal(shape, dtype=dtype)

    def random_uniform(
        self, shape: Sequence[int], minval: Any = 0, maxval: Any = None, dtype: Any = tf.float32
    ) -> tf.Tensor:
        dtype = tf.as_dtype(dtype)
        if maxval is None:
            maxval = dtype.max if dtype.is_integer else 1
        with _part_of(shape):
            return tf.random.uniform(shape, minval, maxval, dtype)


def _part_of(shape: Sequence[int]) -> AbstractContextManager[None]:
    """Draw for as many examples as the first dimension of a shape."""
    static = static_shape(shape)
    if static is None:
        raise ConfigError(
            "task: a draw must have a static shape; write e.g. batch['weight'].shape[0], not "
            "tf.shape(...)[0]"
        )
    return randomness.part_of_size(static[0]) if static else nullcontext()
