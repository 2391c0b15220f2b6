"""Forward and backward pass of one replica, over its shards and their micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.config.options import constraints
from trainer.engine.graph.exchange.collectives import Collectives
from trainer.engine.graph.placement.step_devices import backward_pass, on_own_device
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.step.captured_updates import CapturedUpdates
from trainer.engine.graph.step.metric_sums import (
    Sizes,
    Sums,
    flat_sums,
    restored_sums,
    sizes_of,
    sums_of,
)
from trainer.engine.graph.step.row_gradients import (
    Gradient,
    add_rows,
    combine,
    flat,
    may_have_rows,
    of_static_size,
    restored,
    stays_in_rows,
)
from trainer.engine.graph.step.shard_tree import (
    add_all,
    chain_sum,
    gradients_in_order,
    keep_apart,
    sum_over_shards,
    tree_sum,
)
from trainer.engine.graph.step.shards import cut, of_each_shard
from trainer.engine.graph.step.step_options import Gradients, StepOptions
from trainer.errors import ConfigError
from trainer.protocols import Batch, LossFn, PartLoss


@dataclass(frozen=True)
class Contribution:
    """What one replica adds to a step.

    Attributes:
        gradients: of the model's trainable variables: dense, or in rows. Of several replicas these
            have a static number of rows, and an index may come again with zeros; of the only pass
            of all a row may come again.
        sums: name -> (sum, weight) of the loss and the metrics.
        updated: where updates are captured, or of a model that notes them: the variables that the
            forward passes update.
        updates: for each of these the sum of its new values over the forward passes, float32.
    """

    gradients: Gradients
    sums: Sums
    updated: list[tf.Variable]
    updates: list[tf.Tensor]

    def packed_sums(self) -> tf.Tensor:
        """Return the sums and weights as one vector, float32."""
        return flat_sums(self.sums)

    def unpack_sums(self, packed: tf.Tensor) -> Sums:
        """Return the sums and weights of a vector that is packed likewise, by name."""
        return restored_sums(packed, sizes_of(self.sums))


def accumulate_gradients(
    loss_fn: LossFn,
    batch: Batch,
    model: tf.keras.Model,
    options: StepOptions,
    collectives: Collectives,
    scale: tf.Tensor | None = None,
) -> Contribution:
    """Add up gradients and metric sums over shards and micro-batches, on this replica alone.

    Args:
        loss_fn: returns the loss and metrics of each example of a (micro-)batch.
        collectives: this replica's; a loss function may use them if the batch is not cut.
        scale: what the loss is multiplied by; None: it is not scaled.

    Raises:
        ConfigError: the batch cannot be cut evenly.
    """
    for layer in model.submodules:
        if hasattr(layer, "before_update"):
            layer.before_update()
    passes = _Passes(loss_fn, batch, model, options, collectives, scale)
    weights = model.trainable_variables
    specs = [passes.spec_of(variable) for variable in weights]
    specs += [tf.TensorSpec(variable.shape, tf.float32) for variable in passes.moving]
    specs.append(tf.TensorSpec([None], tf.float32))  # the metrics, known when a pass is traced
    with randomness.part_of_size(passes.size):
        *tensors, numbers = passes.add_up(specs)
    numbers = tf.ensure_shape(numbers, [sum(map(sum, passes.sizes.values()))])
    positions = sorted(passes.updated)
    updates = tensors[len(weights) :]
    return Contribution(
        passes.of_static_sizes(tensors[: len(weights)]),
        restored_sums(numbers, passes.sizes),
        [passes.moving[i] for i in positions],
        [updates[i] for i in positions],
    )


def forward_parts(
    fn: Callable[[Batch], Any],
    batch: Batch,
    model: tf.keras.Model,
    options: StepOptions,
    num_replicas: int,
) -> Any:
    """Return what `fn` returns for each shard and micro-batch of a replica, concatenated.

    The batch is cut as `accumulate_gradients` cuts it, which draws the same numbers afterwards. No
    variable changes.

    Args:
        fn: returns a nest of tensors, [b, ...], of a part of the batch.
    """
    num_shards = (options.shards or num_replicas) // num_replicas
    size = int(batch["weight"].shape[0]) // num_shards

    def of_shard(shard: Batch) -> Any:
        micro, enter = cut(shard, options.accumulate), randomness.split_part(options.accumulate)
        results = []
        for part in range(options.accumulate):
            captured = CapturedUpdates(moving_variables(model), noted=notes_updates(model))
            with enter(part), captured.capture():
                results.append(fn(micro(part)))
        return tf.nest.map_structure(lambda *rows: _joined(rows, size), *results)

    with randomness.repeatable():
        if options.shards is None:
            return of_shard(batch)
        # Behind a snapshot: where no loop is around the step's own pass, TensorFlow would make one
        # of both, whose operations it fuses otherwise.
        hidden = tf.nest.map_structure(
            lambda x: x if x.dtype == tf.string else tf.raw_ops.Snapshot(input=x), batch
        )
        return of_each_shard(of_shard, hidden, num_shards)


def _joined(parts: Sequence[tf.Tensor], size: int) -> tf.Tensor:
    """Return tensors of the parts of a batch as one, of `size` rows if their number is unknown."""
    whole = tf.concat(parts, axis=0)
    return tf.ensure_shape(whole, [whole.shape[0] or size, *whole.shape[1:]])


def moving_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that a forward pass may update; frozen weights are not among them."""
    return [variable for variable in model.non_trainable_variables if not variable.trainable]


def notes_updates(model: tf.keras.Model) -> bool:
    """Return whether a model's forward pass notes its updates instead of making them."""
    return getattr(model, "notes_updates", False)


class _Passes:
    """The forward and backward passes of one update: one, or one for each part of the batch.

    Attributes:
        size: examples in the replica's batch.
        moving: variables whose updates are captured.
        updated: positions of the variables in `moving` that are updated; complete once a pass has
            been traced.
        sizes: of the metrics' sums and weights; complete once a pass has been traced.
    """

    def __init__(
        self,
        loss_fn: LossFn,
        batch: Batch,
        model: tf.keras.Model,
        options: StepOptions,
        collectives: Collectives,
        scale: tf.Tensor | None,
    ) -> None:
        self._loss_fn = loss_fn
        self._batch = batch
        self._model = model
        self._options = options
        self._collectives = collectives
        self._scale = scale
        num_replicas = collectives.num_replicas
        self._num_shards = (options.shards or num_replicas) // num_replicas
        self.size = int(batch["weight"].shape[0])
        self._check_size()
        self._notes = notes_updates(model)
        captures = self._notes or options.captures_updates
        self.moving = moving_variables(model) if captures else []
        self._num_passes = options.passes(num_replicas)
        self.updated: set[int] = set()
        self.sizes: Sizes = {}
        self._lookups: list[int] = []  # of a pass, for each weight

    def _check_size(self) -> None:
        options = self._options
        unit = self._num_shards * options.accumulate
        if self.size % unit:
            raise ConfigError(
                f"task: minimize was given {self.size} of the examples of a replica, but "
                f"batch.shards ({constraints.format_value(options.shards)}) and batch.accumulate "
                f"({options.accumulate}) cut them into {unit} parts; change batch.global_size, or "
                "into how many parts the task splits a batch"
            )

    def spec_of(self, weight: tf.Variable) -> tf.TensorSpec:
        """Return shape and type of a weight's gradient, of an unknown number of rows if it may."""
        shape = weight.shape
        may_vary = self._options.rows and may_have_rows(shape)
        return tf.TensorSpec([None, *shape[1:]] if may_vary else shape, tf.float32)

    def of_static_sizes(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return gradients whose rows are of a number that all replicas have, if there are several.

        It is that of the lookups, of which some may have been of the same row.
        """
        if self._collectives.num_replicas == 1:
            return gradients
        passes = self._num_shards * self._options.accumulate
        return [
            of_static_size(x, count * passes) if isinstance(x, tf.IndexedSlices) else x
            for x, count in zip(gradients, self._lookups, strict=True)
        ]

    def add_up(self, specs: Sequence[tf.TensorSpec]) -> list[Gradient]:
        """Add up what `_pass` returns for each part: over shards in the order of a tree."""
        if self._options.shards is None:
            return self._over_micro_batches(self._batch)
        count = self._num_shards
        shards = cut(self._batch, count)
        enter = randomness.split_part(count)

        def compute_shard(number: int | tf.Tensor) -> list[Gradient]:
            with enter(number):
                return self._over_micro_batches(shards(number))

        if self._options.overlap:
            # Each is traced by itself, so that none waits for another.
            return tree_sum([compute_shard(number) for number in range(count)], add_all)
        return sum_over_shards(compute_shard, count, specs)

    def _over_micro_batches(self, batch: Batch) -> list[Gradient]:
        count = self._options.accumulate
        if count == 1:
            return self._pass(batch)
        micro = cut(batch, count)
        enter = randomness.split_part(count)

        def compute_part(part: int | tf.Tensor) -> list[Gradient]:
            with enter(part):
                return self._pass(micro(part))

        if self._options.overlap:
            return chain_sum([compute_part(part) for part in range(count)], add_all)

        # The first one outside of the loop: XLA must know all shapes when the loop begins.
        first = compute_part(0)
        in_rows = [isinstance(x, tf.IndexedSlices) for x in first]

        def add_part(part: tf.Tensor, total: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            pairs = zip(restored(total, in_rows, first), compute_part(part), strict=True)
            new = [add_rows(a, b) if isinstance(a, tf.IndexedSlices) else a + b for a, b in pairs]
            return part + 1, flat(new, in_rows)

        _, total = tf.while_loop(
            lambda part, _: part < count,
            add_part,
            (tf.constant(1), flat(first, in_rows)),
            parallel_iterations=1,  # accumulation is to keep the other micro-batches out of memory
        )
        return restored(total, in_rows, first)

    def _pass(self, batch: Batch) -> list[Gradient]:
        """Return the gradients, the captured updates and the metric sums of one pass."""
        values = self._model.read_values() if self._notes else []
        compute = self._gradients
        if self._options.jit:
            # A new function for each trace: replicas have different variables and cannot share one.
            compute = tf.function(self._gradients, jit_compile=True, autograph=False)
        results = compute(batch, self._scale, values)
        if self._num_passes == 1:
            return list(results)
        return [on_own_device(combine, x) for x in results]

    def _gradients(
        self, batch: Batch, scale: tf.Tensor | None, values: list[tf.Tensor]
    ) -> list[Gradient]:
        captured = self._captured()
        trained = self._model.trainable_variables
        with (
            randomness.traced_here(),
            tf.GradientTape() as tape,
            self._model.computed_from(values) if values else nullcontext(),
        ):
            tape.watch(values[: len(trained)])
            with captured.capture():
                objective, sums = self._loss(batch, scale)
        is_sharded = self._options.shards is not None
        graph = tf.compat.v1.get_default_graph()
        with backward_pass(), gradients_in_order():
            num_before = len(graph.get_operations())
            gradients = tape.gradient(
                objective,
                values[: len(trained)] or trained,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            if is_sharded:
                keep_apart(graph.get_operations()[num_before:])
            gradients = self._in_rows_or_dense(gradients, trained, batch)
        self.updated.update(captured.updated())
        self.sizes |= sizes_of(sums)
        return [*gradients, *captured.values(), flat_sums(sums)]

    def _in_rows_or_dense(
        self, gradients: list[Gradient], weights: list[tf.Variable], batch: Batch
    ) -> list[Gradient]:
        """Return the gradients of a pass, those of large tables of few lookups in rows."""
        self._lookups[:] = [self._lookups_of(gradient, batch) for gradient in gradients]
        result = []
        for gradient, weight, count in zip(gradients, weights, self._lookups, strict=True):
            if stays_in_rows(gradient, weight.shape, count * self._num_passes):
                values = tf.reshape(gradient.values, [-1, *weight.shape[1:]])
                result.append(tf.IndexedSlices(values, tf.cast(gradient.indices, tf.int64)))
            else:
                dense = tf.convert_to_tensor(gradient)
                # That of what begins with texts may be unknown.
                is_known = dense.shape.is_fully_defined()
                result.append(dense if is_known else tf.ensure_shape(dense, weight.shape))
        return result

    def _lookups_of(self, gradient: Gradient, batch: Batch) -> int:
        """Return how many rows a pass looks up; 0 if its gradient cannot stay in rows."""
        if not self._options.rows or not isinstance(gradient, tf.IndexedSlices):
            return 0
        count = gradient.indices.shape.num_elements()
        if count is None and self._collectives.num_replicas == 1:
            # A part of a table that servers divide among them: at most all integers of the batch.
            tensors = tf.nest.flatten(batch, expand_composites=True)
            count = sum(x.shape.num_elements() or 0 for x in tensors if x.dtype.is_integer)
        return count or 0

    def _captured(self) -> CapturedUpdates:
        if not self._notes:
            return CapturedUpdates(self.moving)
        return CapturedUpdates(
            self.moving,
            noted=True,
            differences=self._options.adds_differences,
            read=self._model.value_of,
        )

    def _loss(self, batch: Batch, scale: tf.Tensor | None) -> tuple[tf.Tensor, Sums]:
        with self._collectives.on_part(int(batch["weight"].shape[0]) < self.size):
            result = self._loss_fn(batch)
        if isinstance(result, PartLoss):
            return result.loss if scale is None else result.loss * scale, dict(result.sums)
        losses, metrics = result
        loss_sum = tf.reduce_sum(tf.cast(losses, tf.float32) * batch["weight"])
        objective = loss_sum / (self.size * self._collectives.num_replicas)
        if regularization := self._model.losses:
            objective += tf.add_n(regularization) / self._num_passes
        if scale is not None:
            objective *= scale
        return objective, sums_of(losses, metrics, batch["weight"])
