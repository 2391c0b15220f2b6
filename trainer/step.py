"""One replica's part of one training step: gradients, one reduction over the replicas, clipping, the fused update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from trainer import randomness
from trainer.collectives import CollectiveLog, Collectives
from trainer.guard import Guard
from trainer.protocols import Batch, Metrics
from trainer.state import LossScale

PerExample = tuple[tf.Tensor, Mapping[str, tf.Tensor]]
"""What a loss function returns: the loss of each example, [b], and other metrics of each example, name -> [b]."""

LossFn = Callable[[Batch], PerExample]
Sums = dict[str, tuple[tf.Tensor, tf.Tensor]]
Gradients = list[tf.Tensor]
Exchange: TypeAlias = Callable[[tf.distribute.ReplicaContext, Gradients, list[tf.Tensor]], tuple[Gradients, list[tf.Tensor]]]
Optimizer: TypeAlias = tf.keras.optimizers.legacy.Optimizer


def sums_of(losses: tf.Tensor, metrics: Mapping[str, tf.Tensor], weight: tf.Tensor) -> Sums:
    """Adds up the loss and the metrics of each example, all [b], with the examples' weights; name -> (sum, weight)."""
    total = tf.reduce_sum(weight)
    return {name: (tf.reduce_sum(tf.cast(x, tf.float32) * weight), total) for name, x in {"loss": losses, **metrics}.items()}


@dataclass(frozen=True)
class StepOptions:
    """What every step of a run has in common.

    Attributes:
        global_size: examples in one update; the denominator of every loss.
        accumulate: micro-batches to a replica's batch.
        clip_norm: global norm to which the global batch's gradient is clipped; None: not.
        jit: whether forward and backward pass are compiled by XLA.
        loss_scale: the loss scale of mixed_float16; None: not needed.
        optimizer_reduces: whether the optimizer's own reduction cannot be left out; it is then given its share of the sum.
        exchange: sums gradients, and other tensors that must not be rounded, over the replicas; None: as one `all_reduce`.
        guard: judges each update before it is made; None: nobody does.
    """

    global_size: int
    accumulate: int = 1
    clip_norm: float | None = None
    jit: bool = False
    loss_scale: LossScale | None = None
    optimizer_reduces: bool = False
    exchange: Exchange | None = None
    guard: Guard | None = None


class Step:
    """What a task's `train_step` may use. Made anew for each replica while the step is traced.

    Attributes:
        index: scalar int64, number of the step, from 0.
        num_replicas: replicas that share the step.
        options: what every step has in common.
        finding: what the guard found with the first update that is not sound, or else with the last; see `Guard.judge`.
        dropped: whether an update was dropped, bool scalar.

    Args:
        log: what the replicas communicate, in order; shared by all of them.
    """

    def __init__(self, index: tf.Tensor, options: StepOptions, log: CollectiveLog) -> None:
        self.index = index
        self.options = options
        self._replica = tf.distribute.get_replica_context()
        self.num_replicas: int = self._replica.num_replicas_in_sync
        self._collectives = Collectives(log)
        self.finding, self.dropped = tf.zeros([4]), tf.constant(False)

    def minimize(
        self,
        loss_fn: LossFn,
        batch: Batch,
        model: tf.keras.Model,
        optimizer: Optimizer,
    ) -> Metrics:
        """Updates a model once with the gradient of the global batch's mean loss.

        Losses are summed and divided by the global batch size; regularisation losses of the model count once. Gradients and
        metrics travel in one reduction; the gradient is clipped after it, so clipping does not depend on the replicas.

        Args:
            loss_fn: gives the loss and metrics of each example of a (micro-)batch.
            batch: this replica's batch.
            model: the model whose trainable variables are updated.
            optimizer: the optimizer that updates them.

        Returns:
            `loss` (without regularisation) and the other metrics as sums and weights over all replicas.
        """
        skips = self.options.guard is not None and self.options.guard.skips
        moving = _moving(model) if skips else []
        before = [variable.read_value() for variable in moving]  # the forward pass is about to move them
        gradients, sums = self._accumulate(loss_fn, batch, model)
        names, statistics = list(sums), self._statistics(model)
        gradients, (packed, *totals) = self._sum_over_replicas(
            gradients, [tf.stack([x for name in names for x in sums[name]]), *(variable.read_value() for variable in statistics)]
        )
        for variable, total in zip(statistics, totals, strict=True):
            variable.assign(total / self.num_replicas)
        reduced = {name: (packed[2 * i], packed[2 * i + 1]) for i, name in enumerate(names)}
        self._apply(optimizer, model.trainable_variables, gradients, reduced)
        for variable, old in zip(moving, before, strict=True):
            variable.assign(tf.where(self.dropped, old, variable.read_value()))
        return reduced

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduces a nest of tensors over all replicas, element by element; every replica gets the result.

        This, `map_reduce`, `all_gather` and `broadcast` may stand anywhere in a step, also within a model, but not within a
        tf.function, tf.while_loop or tf.cond. All replicas must call the same ones, in the same order and with the same shapes,
        which must be static. They are differentiable, with respect to the sum of all replicas' losses.

        Args:
            value: this replica's nest of numbers or dense tensors.
            op: sum, mean, min or max. There is no mean of integers.
        """
        return self._collectives.all_reduce(value, op)

    def map_reduce(self, fn: Callable[[Any], Any], value: Any, op: str = "sum") -> Any:
        """Applies `fn` to this replica's value, and reduces the nest that it gives as `all_reduce` does."""
        return self._collectives.map_reduce(fn, value, op)

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Stacks the values of all replicas along a new axis; every replica gets the result.

        Args:
            value: this replica's nest of numbers or dense tensors.
            axis: where the new axis, of length `num_replicas`, is in the result.
        """
        return self._collectives.all_gather(value, axis)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Gives every replica the value of replica `source`; the others' must have the same nest, shapes and types."""
        return self._collectives.broadcast(value, source)

    def end(self) -> None:
        """Says that this replica's step is over.

        Raises:
            ValueError: another replica communicated more often.
        """
        self._collectives.end()

    def _accumulate(self, loss_fn: LossFn, batch: Batch, model: tf.keras.Model) -> tuple[Gradients, Sums]:
        """Adds up gradients and metric sums over the micro-batches, on this replica alone."""
        parts = self.options.accumulate
        if parts == 1:
            return self._gradients(loss_fn, batch, model)
        micro = tf.nest.map_structure(lambda x: tf.reshape(x, [parts, x.shape[0] // parts, *x.shape[1:]]), batch)

        def gradients_of(part: int | tf.Tensor) -> tuple[Gradients, Sums]:
            with randomness.folded_step_seed(part):
                return self._gradients(loss_fn, tf.nest.map_structure(lambda x: x[part], micro), model)

        first = gradients_of(0)
        total = tf.while_loop(
            lambda part, _: part < parts,
            lambda part, total: (part + 1, tf.nest.map_structure(tf.add, total, gradients_of(part))),
            (tf.constant(1), first),
            parallel_iterations=1,  # else several micro-batches are in memory at a time, which is what accumulation is to avoid
        )[1]
        return total

    def _gradients(self, loss_fn: LossFn, batch: Batch, model: tf.keras.Model) -> tuple[Gradients, Sums]:
        """Gives the (micro-)batch's gradients as dense tensors, and name -> (sum, weight)."""
        options = self.options

        def forward_and_backward(batch: Batch, scale: tf.Tensor | None) -> tuple[Gradients, Sums]:
            with tf.GradientTape() as tape:
                losses, metrics = loss_fn(batch)
                loss_sum = tf.reduce_sum(tf.cast(losses, tf.float32) * batch["weight"])
                objective = loss_sum / options.global_size
                if regularization := model.losses:
                    objective += tf.add_n(regularization) / (self.num_replicas * options.accumulate)
                if scale is not None:
                    objective *= scale
            gradients = tape.gradient(objective, model.trainable_variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return [tf.convert_to_tensor(gradient) for gradient in gradients], sums_of(losses, metrics, batch["weight"])

        # A new function for each trace: replicas must not share one, their variables are different ones.
        compute = tf.function(forward_and_backward, jit_compile=True, autograph=False) if options.jit else forward_and_backward
        return compute(batch, None if options.loss_scale is None else options.loss_scale.value.read_value())

    def _statistics(self, model: tf.keras.Model) -> list[tf.Variable]:
        """Gives the variables that each replica updates by itself, such as the moving statistics of batch normalisation.

        They are averaged at every step, not only when they are read: so all replicas hold the same, and a run that was saved and
        restored in between, on whatever strategy, goes on with the same bits.
        """
        if self.num_replicas == 1:
            return []
        return [variable for variable in model.non_trainable_variables if variable.synchronization == tf.VariableSynchronization.ON_READ]

    def _sum_over_replicas(self, gradients: Gradients, others: list[tf.Tensor]) -> tuple[Gradients, list[tf.Tensor]]:
        """Sums float32 tensors over the replicas as one flat buffer: one collective, whatever their number.

        Args:
            gradients: may be rounded on the way, if the run says so.
            others: must not.
        """
        if self.num_replicas == 1:
            return gradients, others
        if self.options.exchange is not None:
            self._collectives.note(f"the sum of {len(gradients)} gradients")
            return self.options.exchange(self._replica, gradients, others)
        summed = self.all_reduce([*gradients, *others])
        return summed[: len(gradients)], summed[len(gradients) :]

    def _apply(self, optimizer: Optimizer, variables: list[tf.Variable], gradients: Gradients, sums: Sums) -> None:
        """Judges the update, and makes it unless it is to be dropped."""
        loss_scale, guard = self.options.loss_scale, self.options.guard
        made = []  # what must all be so
        if loss_scale is not None:
            unscale = 1.0 / loss_scale.value
            gradients = [gradient * unscale for gradient in gradients]
            made.append(tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients]))
        norm = tf.linalg.global_norm(gradients)
        if guard is not None:
            # With a loss scale, gradients that are not finite are its daily business.
            judged = norm if loss_scale is None else tf.where(tf.math.is_finite(norm), norm, 0.0)
            self._note(guard.judge(optimizer, *sums["loss"], judged), guard)
        if self.options.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.options.clip_norm, norm)
        if guard is not None and guard.skips:
            made.append(tf.logical_not(self.dropped))
        if made:
            self._update_if(tf.reduce_all(made), optimizer, variables, gradients)
        else:
            self._update(optimizer, variables, gradients)
        if loss_scale is not None:
            loss_scale.update(made[0] | self.dropped)  # the scale is not to blame for a loss

    def _note(self, finding: tf.Tensor, guard: Guard) -> None:
        bad = self.finding[0] > 0.0
        self.finding = tf.where(bad, self.finding, finding)
        if guard.skips:
            self.dropped = self.finding[0] > 0.0

    def _update_if(self, made: tf.Tensor, optimizer: Optimizer, variables: list[tf.Variable], gradients: Gradients) -> None:
        # A variable may not be updated under a condition inside a replica, so the condition is moved out of the replicas,
        # where it is one and the same for all of them: the gradients have been reduced.
        def cross_replica(strategy: tf.distribute.Strategy, made: Any, *gradients: Any) -> tf.Tensor:
            made = strategy.experimental_local_results(made)[0]

            def update() -> tf.Tensor:
                strategy.extended.call_for_each_replica(lambda *own: self._update(optimizer, variables, own), args=gradients)
                return tf.constant(True)

            return tf.cond(made, update, lambda: tf.constant(False))

        self._replica.merge_call(cross_replica, args=(made, *gradients))

    def _update(self, optimizer: Optimizer, variables: list[tf.Variable], gradients: Gradients) -> None:
        if self.options.optimizer_reduces:
            gradients = [gradient / self.num_replicas for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, variables, strict=True), experimental_aggregate_gradients=self.options.optimizer_reduces)


def _moving(model: tf.keras.Model) -> list[tf.Variable]:
    """Gives the variables that a forward pass moves, such as the moving statistics of batch normalisation; not frozen weights."""
    return [variable for variable in model.non_trainable_variables if not variable.trainable]
