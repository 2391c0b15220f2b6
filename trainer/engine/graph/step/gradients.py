"""Forward and backward pass of one replica, over its shards and their micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import tensorflow as tf

from trainer.config.options import constraints
from trainer.engine.graph.placement.requested_devices import check_operations
from trainer.engine.graph.placement.step_devices import backward_pass, forward_pass
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.step.captured_updates import CapturedUpdates
from trainer.engine.graph.step.global_statistics import Compute, GlobalStatistics, Reduce
from trainer.engine.graph.step.metric_sums import Sums, sums_of
from trainer.engine.graph.step.shard_tree import (
    add_beside,
    chain_sum,
    keep_apart,
    sum_over_shards,
    sum_overlapping,
)
from trainer.engine.graph.step.shards import cut
from trainer.engine.graph.step.step_options import Gradients, StepOptions
from trainer.errors import ConfigError
from trainer.protocols import Batch, LossFn


@dataclass(frozen=True)
class Contribution:
    """What one replica adds to a step.

    Attributes:
        gradients: dense, of the model's trainable variables.
        sums: name -> (sum, weight) of the loss and the metrics.
        updated: with shards, or of a model that notes them: the variables that the forward passes
            update.
        updates: for each of these the sum of its new values over the forward passes, float32.
        moving: moving statistics of the global batch and their new values, the same on all
            replicas.
    """

    gradients: Gradients
    sums: Sums
    updated: list[tf.Variable]
    updates: list[tf.Tensor]
    moving: list[tuple[tf.Variable, tf.Tensor]]


def accumulate_gradients(
    loss_fn: LossFn,
    batch: Batch,
    model: tf.keras.Model,
    options: StepOptions,
    num_replicas: int,
    reduce: Reduce,
    scale: tf.Tensor | None = None,
) -> Contribution:
    """Add up gradients and metric sums over shards and micro-batches, on this replica alone.

    Args:
        loss_fn: returns the loss and metrics of each example of a (micro-)batch.
        batch: this replica's batch.
        model: the model whose trainable variables the gradients are of.
        options: what all steps have in common.
        num_replicas: replicas that share the step.
        reduce: sums over the replicas statistics of synchronised normalisation.
        scale: what the loss is multiplied by; None: it is not scaled.

    Raises:
        ConfigError: an operation of the forward pass requests a device of its own, or the batch
            cannot be cut evenly.
    """
    size = _size(batch, options, num_replicas)
    _prepare(model)
    weights = model.trainable_variables
    captures = notes_updates(model) or options.shards is not None
    moving = moving_variables(model) if captures else []
    passes = (options.shards or num_replicas) * options.accumulate

    add_up = partial(_sum_over_parts, batch, options, num_replicas)
    statistics = GlobalStatistics(options.synchronised, passes, add_up, reduce)
    examples = size * num_replicas
    work = _Work(loss_fn, model, options, statistics, examples, moving, scale)
    specs = [tf.TensorSpec(variable.shape, tf.float32) for variable in [*weights, *moving]]
    specs.append(tf.TensorSpec([None], tf.float32))  # the metrics, known when a pass is traced
    with randomness.part_of_size(size):
        statistics.compute(work.objective, model)
        *tensors, numbers = add_up(work.gradients, specs)
    numbers = tf.ensure_shape(numbers, [2 * len(work.names)])
    positions = sorted(work.updated)
    updates = tensors[len(weights) :]
    return Contribution(
        tensors[: len(weights)],
        {name: (numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(work.names)},
        [moving[i] for i in positions],
        [updates[i] for i in positions],
        statistics.moving_updates(),
    )


def _prepare(model: tf.keras.Model) -> None:
    """Tell the layers that ask for it that an update begins."""
    for layer in model.submodules:
        if hasattr(layer, "before_update"):
            layer.before_update()


def moving_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that a forward pass may update; frozen weights are not among them."""
    return [variable for variable in model.non_trainable_variables if not variable.trainable]


def notes_updates(model: tf.keras.Model) -> bool:
    """Return whether a model's forward pass notes its updates instead of making them."""
    return getattr(model, "notes_updates", False)


def _size(batch: Batch, options: StepOptions, num_replicas: int) -> int:
    """Return how many examples a replica's batch has.

    Raises:
        ConfigError: it cannot be cut into its shards and micro-batches.
    """
    size = int(batch["weight"].shape[0])
    unit = (options.shards or num_replicas) // num_replicas * options.accumulate
    if size % unit:
        raise ConfigError(
            f"task: minimize was given {size} of the examples of a replica, but "
            f"batch.shards ({constraints.format_value(options.shards)}) and batch.accumulate "
            f"({options.accumulate}) cut them into {unit} parts; change batch.global_size, or "
            "into how many parts the task splits a batch"
        )
    return size


@dataclass(frozen=True)
class _Work:
    """What all forward and backward passes of a step have in common.

    Attributes:
        statistics: of synchronised normalisation over the passes.
        examples: examples of the update, over all replicas.
        moving: variables whose updates are captured.
        scale: what the loss is multiplied by; None: it is not scaled.
        updated: positions of those that are updated; complete once a pass has been traced.
        names: the metrics; complete once a pass has been traced.
    """

    loss_fn: LossFn
    model: tf.keras.Model
    options: StepOptions
    statistics: GlobalStatistics
    examples: int
    moving: list[tf.Variable]
    scale: tf.Tensor | None
    updated: set[int] = field(default_factory=set)
    names: list[str] = field(default_factory=list)

    def objective(self, batch: Batch) -> tf.Tensor:
        """Return what one pass adds to the loss of the global batch, a scalar.

        It changes no variable of the model, so it may be computed again.
        """
        moving = moving_variables(self.model)
        captured = CapturedUpdates(moving, noted=notes_updates(self.model))
        with captured.capture(), forward_pass():
            return self._loss(batch, self.scale)[0]

    def gradients(self, batch: Batch) -> list[tf.Tensor]:
        """Return the gradients, the captured updates and the metric sums of one pass."""
        # A new function for each trace: replicas have different variables and cannot share one.
        compute = (
            tf.function(self._gradients, jit_compile=True, autograph=False)
            if self.options.jit
            else self._gradients
        )
        values = self.model.read_values() if notes_updates(self.model) else []
        return compute(batch, self.scale, values)

    def _gradients(
        self, batch: Batch, scale: tf.Tensor | None, values: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        captured = self._captured()
        statistics = self.statistics
        trained = self.model.trainable_variables
        with (
            randomness.traced_here(),
            tf.GradientTape() as tape,
            self._computed_from(values),
        ):
            tape.watch(values[: len(trained)])
            with (
                captured.capture(),
                forward_pass(),
                statistics.known(statistics.totals) as calls,
            ):
                objective, sums = self._loss(batch, scale)
            check_operations(graph.get_operations()[num_before:], compiled=self.options.jit)
            objective += statistics.weighted(calls)
        with backward_pass():
            num_before = len(graph.get_operations())
            gradients = tape.gradient(
                objective,
                values[: len(trained)] or trained,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            if self.options.shards is not None:
                keep_apart(graph.get_operations()[num_before:])
            dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        self.updated.update(captured.updated())
        self.names[:] = sums
        numbers = tf.stack([number for pair in sums.values() for number in pair])
        return [*dense, *captured.means(), numbers]

    def _computed_from(self, values: list[tf.Tensor]) -> AbstractContextManager[None]:
        return self.model.computed_from(values) if values else nullcontext()

    def _captured(self) -> CapturedUpdates:
        if not notes_updates(self.model):
            return CapturedUpdates(self.moving)
        return CapturedUpdates(
            self.moving,
            noted=True,
            differences=self.options.adds_differences,
            read=self.model.value_of,
        )

    def _loss(self, batch: Batch, scale: tf.Tensor | None) -> tuple[tf.Tensor, Sums]:
        losses, metrics = self.loss_fn(batch)
        loss_sum = tf.reduce_sum(tf.cast(losses, tf.float32) * batch["weight"])
        objective = loss_sum / self.examples
        if regularization := self.model.losses:
            objective += tf.add_n(regularization) / self.statistics.passes
        if scale is not None:
            objective *= scale
        return objective, sums_of(losses, metrics, batch["weight"])


def _sum_over_parts(
    batch: Batch,
    options: StepOptions,
    num_replicas: int,
    compute: Compute,
    specs: Sequence[tf.TensorSpec],
) -> list[tf.Tensor]:
    """Add up the tensors of all passes of this replica: over its shards in the order of a tree."""
    if options.shards is None:
        return _sum_over_micro_batches(batch, options, compute)
    count = options.shards // num_replicas
    shards = cut(batch, count)
    enter = randomness.split_part(count)

    def compute_shard(number: int | tf.Tensor) -> list[tf.Tensor]:
        with enter(number):
            return _sum_over_micro_batches(shards(number), options, compute)

    sum_all = sum_overlapping if options.overlap else sum_over_shards
    return sum_all(compute_shard, count, specs)


def _sum_over_micro_batches(
    batch: Batch, options: StepOptions, compute: Compute
) -> list[tf.Tensor]:
    """Add up the micro-batches, one after the other."""
    parts = options.accumulate
    if parts == 1:
        return compute(batch)
    micro = cut(batch, parts)
    enter = randomness.split_part(parts)

    def compute_part(part: int | tf.Tensor) -> list[tf.Tensor]:
        with enter(part):
            return compute(micro(part))

    if options.overlap:
        return chain_sum([compute_part(part) for part in range(parts)], _add_beside)

    def add_part(part: tf.Tensor, total: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return part + 1, [a + b for a, b in zip(total, compute_part(part), strict=True)]

    # The first one outside of the loop: XLA must know all shapes when the loop begins.
    _, total = tf.while_loop(
        lambda part, _: part < parts,
        add_part,
        (tf.constant(1), compute_part(0)),
        parallel_iterations=1,  # accumulation is to keep the other micro-batches out of memory
    )
    return total


def _add_beside(left: list[tf.Tensor], right: list[tf.Tensor]) -> list[tf.Tensor]:
    return [add_beside(a, b) for a, b in zip(left, right, strict=True)]
