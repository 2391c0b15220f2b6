"""Forward and backward pass of one replica, over its shards and their micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import tensorflow as tf

from trainer.engine.graph import randomness
from trainer.engine.graph.captured_updates import CapturedUpdates
from trainer.engine.graph.metric_sums import Sums, sums_of
from trainer.engine.graph.placement import check_operations
from trainer.engine.graph.shard_tree import sum_over_shards
from trainer.engine.graph.step_options import Gradients, StepOptions
from trainer.protocols import Batch, LossFn

_Nest: TypeAlias = tuple[Gradients, Sums, list[tf.Tensor]]


@dataclass(frozen=True)
class Contribution:
    """What one replica adds to a step.

    Attributes:
        gradients: dense, of the model's trainable variables.
        sums: name -> (sum, weight) of the loss and the metrics.
        updated: with shards: the variables that the forward passes update.
        updates: for each of these the sum of its new values over the forward passes, float32.
    """

    gradients: Gradients
    sums: Sums
    updated: list[tf.Variable]
    updates: list[tf.Tensor]


def accumulate_gradients(
    loss_fn: LossFn,
    batch: Batch,
    model: tf.keras.Model,
    options: StepOptions,
    num_replicas: int,
) -> Contribution:
    """Add up gradients and metric sums over shards and micro-batches, on this replica alone.

    Args:
        loss_fn: returns the loss and metrics of each example of a (micro-)batch.
        batch: this replica's batch.
        model: the model whose trainable variables the gradients are of.
        options: what all steps have in common.
        num_replicas: replicas that share the step.

    Raises:
        ConfigError: an operation of the forward pass requests a device of its own.
    """
    passes = (options.shards or num_replicas) * options.accumulate
    if options.shards is None:
        work = _Work(loss_fn, model, options, passes)
        gradients, sums, _ = _sum_over_micro_batches(work, batch)
        return Contribution(gradients, sums, [], [])
    moving = [variable for variable in model.non_trainable_variables if not variable.trainable]
    work = _Work(loss_fn, model, options, passes, moving)
    gradients, sums, updates = _sum_over_shards(work, batch, options.shards // num_replicas)
    positions = sorted(work.updated)
    return Contribution(
        gradients, sums, [moving[i] for i in positions], [updates[i] for i in positions]
    )


@dataclass(frozen=True)
class _Work:
    """What all forward and backward passes of a step have in common.

    Attributes:
        passes: number of them in a step, over all replicas.
        moving: variables whose updates are captured.
        updated: positions of those that are updated; complete once a pass has been traced.
    """

    loss_fn: LossFn
    model: tf.keras.Model
    options: StepOptions
    passes: int
    moving: list[tf.Variable] = field(default_factory=list)
    updated: set[int] = field(default_factory=set)


def _sum_over_shards(work: _Work, batch: Batch, count: int) -> _Nest:
    """Add up the shards of this replica in the order of the tree."""
    shards = _cut(batch, count)
    enter = randomness.split_part(count)
    names: list[str] = []

    def compute(number: int | tf.Tensor) -> list[tf.Tensor]:
        with enter(number):
            gradients, sums, updates = _sum_over_micro_batches(work, shards(number))
        names[:] = sums
        numbers = tf.stack([number for pair in sums.values() for number in pair])
        return [*gradients, *updates, numbers]

    variables = [*work.model.trainable_variables, *work.moving]
    specs = [tf.TensorSpec(variable.shape, tf.float32) for variable in variables]
    # Which metrics there are is known only when a shard has been traced.
    *tensors, numbers = sum_over_shards(compute, count, [*specs, tf.TensorSpec([None], tf.float32)])
    numbers = tf.ensure_shape(numbers, [2 * len(names)])
    sums = {name: (numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(names)}
    num_gradients = len(work.model.trainable_variables)
    return tensors[:num_gradients], sums, tensors[num_gradients:]


def _sum_over_micro_batches(work: _Work, batch: Batch) -> _Nest:
    """Add up the micro-batches, one after the other."""
    parts = work.options.accumulate
    if parts == 1:
        return _pass(work, batch)
    micro = _cut(batch, parts)
    enter = randomness.split_part(parts)

    def compute(part: int | tf.Tensor) -> _Nest:
        with enter(part):
            return _pass(work, micro(part))

    first = compute(0)
    _, total = tf.while_loop(
        lambda part, _: part < parts,
        lambda part, total: (part + 1, tf.nest.map_structure(tf.add, total, compute(part))),
        (tf.constant(1), first),
        parallel_iterations=1,  # accumulation is to keep the other micro-batches out of memory
    )
    return total


def _cut(batch: Batch, parts: int) -> Callable[[int | tf.Tensor], Batch]:
    """Cut a batch into equal parts; return a function that returns one of them."""
    if parts == 1:
        return lambda part: batch
    cut = tf.nest.map_structure(
        lambda x: tf.reshape(x, [parts, x.shape[0] // parts, *x.shape[1:]]), batch
    )
    return lambda part: tf.nest.map_structure(lambda x: x[part], cut)


def _pass(work: _Work, batch: Batch) -> _Nest:
    """Return the gradients, the metric sums and the captured updates of one forward pass."""
    model = work.model
    options = work.options

    def forward_and_backward(batch: Batch, scale: tf.Tensor | None) -> _Nest:
        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        captured = CapturedUpdates(work.moving)
        with tf.GradientTape() as tape:
            with captured.capture():
                losses, metrics = work.loss_fn(batch)
            check_operations(graph.get_operations()[num_before:], compiled=options.jit)
            loss_sum = tf.reduce_sum(tf.cast(losses, tf.float32) * batch["weight"])
            objective = loss_sum / options.global_size
            if regularization := model.losses:
                objective += tf.add_n(regularization) / work.passes
            if scale is not None:
                objective *= scale
        gradients = tape.gradient(
            objective,
            model.trainable_variables,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        work.updated.update(captured.updated())
        return dense, sums_of(losses, metrics, batch["weight"]), captured.means()

    # A new function for each trace: replicas have different variables and cannot share one.
    compute = (
        tf.function(forward_and_backward, jit_compile=True, autograph=False)
        if options.jit
        else forward_and_backward
    )
    scale = None if options.loss_scale is None else options.loss_scale.value.read_value()
    return compute(batch, scale)
