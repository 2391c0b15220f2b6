"""Forward and backward pass of one replica, over one or several micro-batches."""

from __future__ import annotations

import tensorflow as tf

from trainer.engine.graph import randomness
from trainer.engine.graph.metric_sums import Sums, sums_of
from trainer.engine.graph.placement import check_operations
from trainer.engine.graph.step_options import Gradients, StepOptions
from trainer.protocols import Batch, LossFn


def accumulate_gradients(
    loss_fn: LossFn,
    batch: Batch,
    model: tf.keras.Model,
    options: StepOptions,
    num_replicas: int,
) -> tuple[Gradients, Sums]:
    """Add up gradients and metric sums over the micro-batches, on this replica alone.

    Args:
        loss_fn: returns the loss and metrics of each example of a (micro-)batch.
        batch: this replica's batch.
        model: the model whose trainable variables the gradients are of.
        options: what all steps have in common.
        num_replicas: replicas that share the step.

    Returns:
        The gradients, dense, and name -> (sum, weight) of the loss and the metrics.

    Raises:
        ConfigError: an operation of the forward pass requests a device of its own.
    """
    parts = options.accumulate
    if parts == 1:
        return _gradients(loss_fn, batch, model, options, num_replicas)
    micro = tf.nest.map_structure(
        lambda x: tf.reshape(x, [parts, x.shape[0] // parts, *x.shape[1:]]), batch
    )

    enter = randomness.split_part(parts)

    def gradients_of(part: int | tf.Tensor) -> tuple[Gradients, Sums]:
        with enter(part):
            micro_batch = tf.nest.map_structure(lambda x: x[part], micro)
            return _gradients(loss_fn, micro_batch, model, options, num_replicas)

    first = gradients_of(0)
    _, total = tf.while_loop(
        lambda part, _: part < parts,
        lambda part, total: (part + 1, tf.nest.map_structure(tf.add, total, gradients_of(part))),
        (tf.constant(1), first),
        parallel_iterations=1,  # accumulation is to keep the other micro-batches out of memory
    )
    return total


def _gradients(
    loss_fn: LossFn,
    batch: Batch,
    model: tf.keras.Model,
    options: StepOptions,
    num_replicas: int,
) -> tuple[Gradients, Sums]:
    """Return the gradients and the metric sums of a (micro-)batch."""

    def forward_and_backward(batch: Batch, scale: tf.Tensor | None) -> tuple[Gradients, Sums]:
        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        with tf.GradientTape() as tape:
            losses, metrics = loss_fn(batch)
            check_operations(graph.get_operations()[num_before:], compiled=options.jit)
            loss_sum = tf.reduce_sum(tf.cast(losses, tf.float32) * batch["weight"])
            objective = loss_sum / options.global_size
            if regularization := model.losses:
                objective += tf.add_n(regularization) / (num_replicas * options.accumulate)
            if scale is not None:
                objective *= scale
        gradients = tape.gradient(
            objective,
            model.trainable_variables,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return dense, sums_of(losses, metrics, batch["weight"])

    # A new function for each trace: replicas have different variables and cannot share one.
    compute = (
        tf.function(forward_and_backward, jit_compile=True, autograph=False)
        if options.jit
        else forward_and_backward
    )
    scale = None if options.loss_scale is None else options.loss_scale.value.read_value()
    return compute(batch, scale)
