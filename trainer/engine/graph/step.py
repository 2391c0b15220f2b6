"""A training step on one replica: gradients, one reduction over the replicas, clipping, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.engine.graph.collective_log import CollectiveLog
from trainer.engine.graph.collectives import Collectives
from trainer.engine.graph.divergence import DivergenceMonitor, Verdict, no_verdict
from trainer.engine.graph.gradients import Contribution, accumulate_gradients
from trainer.engine.graph.metric_sums import Sums
from trainer.engine.graph.step_options import Gradients, Optimizer, StepOptions
from trainer.protocols import Batch, LossFn, Metrics


class Step:
    """What a task's `train_step` may use. Created for each replica while the step is traced.

    Attributes:
        index: number of the step, scalar int64, from 0.
        num_replicas: replicas that share the step.
        options: what all steps have in common.
        verdict: the verdict on the first update that is bad, or else on the last update.
        dropped: whether an update was dropped, bool scalar.

    Args:
        log: the collectives of all replicas, in order; shared by them.
    """

    def __init__(self, index: tf.Tensor, options: StepOptions, log: CollectiveLog) -> None:
        self.index = index
        self.options = options
        self._replica = tf.distribute.get_replica_context()
        self.num_replicas: int = self._replica.num_replicas_in_sync
        self._collectives = Collectives(log)
        self.verdict = no_verdict()
        self.dropped = tf.constant(False)

    def minimize(
        self,
        loss_fn: LossFn,
        batch: Batch,
        model: tf.keras.Model,
        optimizer: Optimizer,
    ) -> Metrics:
        """Update a model once with the gradient of the global batch's mean loss.

        Losses are summed and divided by the global batch size; regularization losses of the model
        count once. Gradients and metrics travel in one reduction; the gradient is clipped after
        it, so clipping does not depend on the number of replicas.

        Args:
            loss_fn: returns the loss and metrics of each example of a (micro-)batch.
            batch: this replica's batch.
            model: the model whose trainable variables are updated.
            optimizer: the optimizer that updates them.

        Returns:
            `loss` (without regularization) and the other metrics as sums and weights over all
            replicas.

        Raises:
            ConfigError: an operation of the forward pass requests a device of its own.
        """
        monitor = self.options.divergence_monitor
        moving = _moving(model) if monitor is not None and monitor.skips else []
        before = [variable.read_value() for variable in moving]  # the forward pass updates them
        own = accumulate_gradients(loss_fn, batch, model, self.options, self.num_replicas)
        names = list(own.sums)
        statistics = self._statistics(model, own)
        gradients, (packed, *totals) = self._sum_over_replicas(
            own.gradients,
            [
                tf.stack([x for name in names for x in own.sums[name]]),
                *(value for _, value in statistics),
            ],
        )
        self._assign_means([variable for variable, _ in statistics], totals)
        reduced = {name: (packed[2 * i], packed[2 * i + 1]) for i, name in enumerate(names)}
        self._apply(optimizer, model.trainable_variables, gradients, reduced)
        for variable, old in zip(moving, before, strict=True):
            variable.assign(tf.where(self.dropped, old, variable.read_value()))
        return reduced

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce a nest of tensors over all replicas, element by element, to every replica.

        This, `map_reduce`, `all_gather` and `broadcast` may stand anywhere in a step, also within
        a model, but not within a tf.function, tf.while_loop or tf.cond. All replicas must call the
        same ones, in the same order and with the same shapes, which must be static. They are
        differentiable, with respect to the sum of all replicas' losses.

        Args:
            value: this replica's nest of numbers or dense tensors.
            op: sum, mean, min or max. There is no mean of integers.
        """
        return self._collectives.all_reduce(value, op)

    def map_reduce(self, fn: Callable[[Any], Any], value: Any, op: str = "sum") -> Any:
        """Apply `fn` to this replica's value, and reduce the resulting nest like `all_reduce`."""
        return self._collectives.map_reduce(fn, value, op)

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Stack the values of all replicas along a new axis; every replica gets the result.

        Args:
            value: this replica's nest of numbers or dense tensors.
            axis: where the new axis, of length `num_replicas`, is in the result.
        """
        return self._collectives.all_gather(value, axis)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of replica `source` on every replica.

        The others' values must have the same nest, shapes and types.
        """
        return self._collectives.broadcast(value, source)

    def end(self) -> None:
        """Note that this replica's step is over.

        Raises:
            ValueError: another replica communicated more often.
        """
        self._collectives.end()

    def _statistics(
        self, model: tf.keras.Model, own: Contribution
    ) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Return the variables that each replica updates by itself, such as moving statistics.

        And what this replica adds to their means.

        They are averaged at every step, not only when they are read: so all replicas hold the
        same, and a run that was saved and restored in between, on whatever strategy, goes on with
        the same bits.
        """
        if self.options.shards is not None:
            return list(zip(own.updated, own.updates, strict=True))
        if self.num_replicas == 1:
            return []
        return [
            (variable, variable.read_value())
            for variable in model.non_trainable_variables
            if variable.synchronization == tf.VariableSynchronization.ON_READ
        ]

    def _assign_means(self, variables: list[tf.Variable], totals: list[tf.Tensor]) -> None:
        """Assign the means of what `_statistics` returned; `totals` are the sums."""
        shards = self.options.shards
        if shards is None:
            for variable, total in zip(variables, totals, strict=True):
                variable.assign(total / self.num_replicas)
            return
        passes = shards * self.options.accumulate

        # Not in the replicas: a variable that they share would be given their mean, and the mean
        # of three equal numbers may be another one.
        def cross_replica(strategy: tf.distribute.Strategy, *totals: Any) -> None:
            for variable, total in zip(variables, totals, strict=True):
                mean = strategy.experimental_local_results(total)[0] / passes
                strategy.extended.update(
                    variable,
                    lambda own, value: own.assign(tf.cast(value, own.dtype)),
                    args=(mean,),
                    group=True,
                )

        if variables:
            self._replica.merge_call(cross_replica, args=tuple(totals))

    def _sum_over_replicas(
        self, gradients: Gradients, others: list[tf.Tensor]
    ) -> tuple[Gradients, list[tf.Tensor]]:
        """Sum float32 tensors over the replicas as one flat buffer: a single collective.

        Args:
            gradients: may be rounded on the way, if the strategy's exchange compresses them.
            others: are never rounded.
        """
        if self.num_replicas == 1:
            return gradients, others
        if self.options.exchange is not None:
            self._collectives.note(f"the sum of {len(gradients)} gradients")
            return self.options.exchange(self._replica, gradients, others)
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
            unscale = 1.0 / loss_scale.value
            gradients = [gradient * unscale for gradient in gradients]
            conditions.append(
                tf.reduce_all(
                    [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients]
                )
            )
        norm = tf.linalg.global_norm(gradients)
        if monitor is not None:
            # With a loss scale, gradients that are not finite are to be expected.
            judged = norm if loss_scale is None else tf.where(tf.math.is_finite(norm), norm, 0.0)
            self._note(monitor.check(optimizer, *sums["loss"], judged), monitor)
        if self.options.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.options.clip_norm, norm)
        if monitor is not None and monitor.skips:
            conditions.append(tf.logical_not(self.dropped))
        if conditions:
            self._update_if(tf.reduce_all(conditions), optimizer, variables, gradients)
        else:
            self._update(optimizer, variables, gradients)
        if loss_scale is not None:
            # The scale is not to blame for a bad loss.
            loss_scale.update(conditions[0] | self.dropped)

    def _note(self, verdict: Verdict, monitor: DivergenceMonitor) -> None:
        self.verdict = self.verdict.where(self.verdict.is_bad, verdict)
        if monitor.skips:
            self.dropped = self.verdict.is_bad

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
                    lambda *own: self._update(optimizer, variables, own), args=gradients
                )
                return tf.constant(True)

            return tf.cond(condition, update, lambda: tf.constant(False))

        self._replica.merge_call(cross_replica, args=(condition, *gradients))

    def _update(
        self, optimizer: Optimizer, variables: list[tf.Variable], gradients: Gradients
    ) -> None:
        if self.options.optimizer_reduces and self.options.shards is not None:
            # The whole sum from one replica: the sum of three thirds may be another number.
            is_first = tf.equal(self._replica.replica_id_in_sync_group, 0)
            gradients = [tf.where(is_first, gradient, -0.0) for gradient in gradients]
        elif self.options.optimizer_reduces:
            gradients = [gradient / self.num_replicas for gradient in gradients]
        optimizer.apply_gradients(
            zip(gradients, variables, strict=True),
            experimental_aggregate_gradients=self.options.optimizer_reduces,
        )


def _moving(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that a forward pass updates, such as moving statistics.

    Frozen weights are not among them.
    """
    return [variable for variable in model.non_trainable_variables if not variable.trainable]
