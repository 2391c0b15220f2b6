"""What is accumulated on one replica: gradients, metrics and new statistics of all passes.

A replica's batch has shards, and each of these micro-batches, of which each is a pass forward and
backward. How a kernel rounds may depend on the size of its tensor, and vectorized functions compute
the last numbers of a tensor by other instructions: so every shard is computed in its own shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeVar

import tensorflow as tf

from trainer.config.options import constraints
from trainer.engine.graph.exchange.collectives import Collectives, reshaped
from trainer.engine.graph.library_patches import gradients_added_by
from trainer.engine.graph.placement.step_devices import backward_pass, on_own_device
from trainer.engine.graph.randomness import randomness
from trainer.engine.graph.step.assignments import (
    moving_variables,
    notes_updates,
    pass_values,
    value_to_sum,
)
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
    may_have_rows,
    of_static_size,
    stays_in_rows,
    values_of,
)
from trainer.engine.graph.step.shard_tree import add, add_all, carries, keep_apart, tree_sum
from trainer.engine.graph.step.step_options import Gradients, StepOptions
from trainer.errors import ConfigError
from trainer.protocols import Batch, LossFn, PartLoss

Nest = TypeVar("Nest")


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
        collectives: this replica's; a loss function may use them if the batch is not cut.
        scale: what the loss is multiplied by; None: it is not scaled.

    Raises:
        ConfigError: the batch cannot be cut evenly.
    """
    for layer in model.submodules:
        if hasattr(layer, "before_update"):
            layer.before_update()
    passes = _Passes(loss_fn, batch, model, options, collectives, scale)
    with randomness.part_of_size(passes.size):
        *tensors, numbers = passes.add_up()
    numbers = tf.ensure_shape(numbers, [sum(map(sum, passes.sizes.values()))])
    count = len(model.trainable_variables)
    gradients, moved = tensors[:count], tensors[count:]
    return Contribution(
        passes.of_static_sizes(gradients),
        restored_sums(numbers, passes.sizes),
        [passes.moving[i] for i in sorted(passes.updated)],
        [moved[i] for i in sorted(passes.updated)],
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

    def joined(*parts: tf.Tensor) -> tf.Tensor:
        whole = tf.concat(parts, axis=0)
        return tf.ensure_shape(whole, [whole.shape[0] or size, *whole.shape[1:]])

    def of_shard(shard: Batch) -> Any:
        micro, enter = cut(shard, options.accumulate), randomness.split_part(options.accumulate)
        results = []
        for part in range(options.accumulate):
            with enter(part), pass_values(model, moving_variables(model)):
                results.append(fn(micro(part)))
        return tf.nest.map_structure(joined, *results)

    with randomness.repeatable():
        if options.shards is None:
            return of_shard(batch)
        # Behind a snapshot: where no loop is around the step's own pass, TensorFlow would make one
        # of both, whose operations it fuses otherwise.
        hidden = tf.nest.map_structure(
            lambda x: x if x.dtype == tf.string else tf.raw_ops.Snapshot(input=x), batch
        )
        return of_each_shard(of_shard, hidden, num_shards)


@dataclass(eq=False)
class _Passes:
    """The forward and backward passes of one update: one, or one for each part of the batch.

    Attributes:
        updated: positions of the variables in `moving` that are updated; complete once a pass has
            been traced.
        sizes: of the metrics' sums and weights; complete once a pass has been traced.
    """

    loss_fn: LossFn
    batch: Batch
    model: tf.keras.Model
    options: StepOptions
    collectives: Collectives
    scale: tf.Tensor | None

    def __post_init__(self) -> None:
        options, num_replicas = self.options, self.collectives.num_replicas
        self._num_shards = (options.shards or num_replicas) // num_replicas
        self._num_passes = options.passes(num_replicas)
        self.size = int(self.batch["weight"].shape[0])
        if self.size % (count := self._num_shards * options.accumulate):
            raise ConfigError(
                f"task: minimize was given {self.size} of the examples of a replica, but "
                f"batch.shards ({constraints.format_value(options.shards)}) and batch.accumulate "
                f"({options.accumulate}) cut them into {count} parts; change batch.global_size, or "
                "into how many parts the task splits a batch"
            )
        self._notes = notes_updates(self.model)
        captures = self._notes or options.captures_updates
        self.moving = moving_variables(self.model) if captures else []
        self.updated: set[int] = set()
        self.sizes: Sizes = {}
        self._lookups: list[int] = []  # of a pass, for each weight

    def of_static_sizes(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return gradients whose rows are of a number that all replicas have, if there are several.

        It is that of the lookups, of which some may have been of the same row.
        """
        if self.collectives.num_replicas == 1:
            return gradients
        passes = self._num_shards * self.options.accumulate
        return [
            of_static_size(x, count * passes) if isinstance(x, tf.IndexedSlices) else x
            for x, count in zip(gradients, self._lookups, strict=True)
        ]

    def add_up(self) -> list[Gradient]:
        """Add up what `_pass` returns for each part: over shards in the order of a tree."""
        if self.options.shards is None:
            return self._over_micro_batches(self.batch)
        count = self._num_shards
        shards = cut(self.batch, count)
        enter = randomness.split_part(count)

        def compute_shard(number: int | tf.Tensor) -> list[Gradient]:
            with enter(number):
                return self._over_micro_batches(shards(number))

        if self.options.overlap:
            # Each is traced by itself, so that none waits for another.
            return tree_sum([compute_shard(number) for number in range(count)], add_all)
        return sum_over_shards(compute_shard, count, self._specs())

    def _specs(self) -> list[tf.TensorSpec]:
        """Return shapes and types of what `_pass` returns; what may be in rows has an unknown size.

        The size of the metrics is known when a pass has been traced.
        """
        specs = []
        for weight in self.model.trainable_variables:
            may_vary = self.options.rows and may_have_rows(weight.shape)
            shape = [None, *weight.shape[1:]] if may_vary else weight.shape
            specs.append(tf.TensorSpec(shape, tf.float32))
        specs += [tf.TensorSpec(variable.shape, tf.float32) for variable in self.moving]
        return [*specs, tf.TensorSpec([None], tf.float32)]

    def _over_micro_batches(self, batch: Batch) -> list[Gradient]:
        count = self.options.accumulate
        if count == 1:
            return self._pass(batch)
        micro = cut(batch, count)
        enter = randomness.split_part(count)

        def compute_part(part: int | tf.Tensor) -> list[Gradient]:
            with enter(part):
                return self._pass(micro(part))

        if self.options.overlap:
            return reduce(add_all, [compute_part(part) for part in range(count)])

        # The first one outside of the loop: XLA needs all shapes when the loop begins.
        first = compute_part(0)
        in_rows = [isinstance(x, tf.IndexedSlices) for x in first]

        def add_part(part: tf.Tensor, total: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            pairs = zip(_restored(total, in_rows, first), compute_part(part), strict=True)
            new = [add_rows(a, b) if isinstance(a, tf.IndexedSlices) else a + b for a, b in pairs]
            return part + 1, _flat(new, in_rows)

        _, total = tf.while_loop(
            lambda part, _: part < count,
            add_part,
            (tf.constant(1), _flat(first, in_rows)),
            parallel_iterations=1,  # accumulation is to keep the other micro-batches out of memory
        )
        return _restored(total, in_rows, first)

    def _pass(self, batch: Batch) -> list[Gradient]:
        """Return the gradients, the captured updates and the metric sums of one pass."""
        values = self.model.read_values() if self._notes else []
        compute = self._gradients
        if self.options.jit:
            # A new function for each trace: replicas have different variables and cannot share one.
            compute = tf.function(self._gradients, jit_compile=True, autograph=False)
        results = compute(batch, self.scale, values)
        if self._num_passes == 1:
            return list(results)
        return [on_own_device(combine, x) for x in results]

    def _gradients(
        self, batch: Batch, scale: tf.Tensor | None, values: list[tf.Tensor]
    ) -> list[Gradient]:
        trained = self.model.trainable_variables
        with (
            randomness.traced_here(),
            tf.GradientTape() as tape,
            self.model.computed_from(values) if values else nullcontext(),
        ):
            tape.watch(values[: len(trained)])
            with pass_values(self.model, self.moving) as assigned:
                objective, sums = self._loss(batch, scale)
        graph = tf.compat.v1.get_default_graph()
        with backward_pass(), gradients_added_by(add):
            num_before = len(graph.get_operations())
            gradients = tape.gradient(
                objective,
                values[: len(trained)] or trained,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            if self.options.shards is not None:
                keep_apart(graph.get_operations()[num_before:])
            gradients = self._in_rows_or_dense(gradients, trained, batch)
        self.updated.update(i for i, v in enumerate(self.moving) if id(v) in assigned)
        self.sizes |= sizes_of(sums)
        differences = self.options.adds_differences
        moved = [
            value_to_sum(v, assigned.get(id(v)), notes=self._notes, differences=differences)
            for v in self.moving
        ]
        return [*gradients, *moved, flat_sums(sums)]

    def _loss(self, batch: Batch, scale: tf.Tensor | None) -> tuple[tf.Tensor, Sums]:
        with self.collectives.on_part(int(batch["weight"].shape[0]) < self.size):
            result = self.loss_fn(batch)
        if isinstance(result, PartLoss):
            return result.loss if scale is None else result.loss * scale, dict(result.sums)
        losses, metrics = result
        loss_sum = tf.reduce_sum(tf.cast(losses, tf.float32) * batch["weight"])
        objective = loss_sum / (self.size * self.collectives.num_replicas)
        if regularization := self.model.losses:
            objective += tf.add_n(regularization) / self._num_passes
        if scale is not None:
            objective *= scale
        return objective, sums_of(losses, metrics, batch["weight"])

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
                # That of what starts with texts may be unknown.
                is_known = dense.shape.is_fully_defined()
                result.append(dense if is_known else tf.ensure_shape(dense, weight.shape))
        return result

    def _lookups_of(self, gradient: Gradient, batch: Batch) -> int:
        """Return how many rows a pass looks up; 0 if its gradient cannot stay in rows."""
        if not self.options.rows or not isinstance(gradient, tf.IndexedSlices):
            return 0
        count = gradient.indices.shape.num_elements()
        if count is None and self.collectives.num_replicas == 1:
            # A part of a table that servers divide among them: at most all integers of the batch.
            tensors = tf.nest.flatten(batch, expand_composites=True)
            count = sum(x.shape.num_elements() or 0 for x in tensors if x.dtype.is_integer)
        return count or 0


def sum_over_shards(
    compute: Callable[[int | tf.Tensor], list[Gradient]], count: int, specs: Sequence[tf.TensorSpec]
) -> list[Gradient]:
    """Add up the tensors of `count` shards in the order of the tree, shard after shard.

    The shards are a loop, traced once. Besides the shard that is computed, the memory holds one
    subtree of each height: 1 + log2(count) at most.

    Args:
        specs: shapes and types of the tensors; a dimension may be unknown. What has an unknown
            number of rows may be a gradient in rows: it is known when a shard has been traced.
    """
    if count == 1:
        return compute(0)
    heights = range(count.bit_length())
    num_complete = tf.constant([carries(number) for number in range(count)])
    variable = [spec.shape.rank > 1 and spec.shape[0] is None for spec in specs]
    indices = tf.TensorSpec([None], tf.int64)
    pairs = zip(specs, variable, strict=True)
    state = [x for spec, may_vary in pairs for x in ([indices, spec] if may_vary else [spec])]
    like: list[Gradient] = []

    def one_shard(number: tf.Tensor, subtrees: list[list[tf.Tensor]]) -> tuple[Any, ...]:
        like[:] = values = compute(number)

        def carried(height: int) -> list[list[tf.Tensor]]:
            total = values
            for subtree in subtrees[:height]:
                total = _add(_restored(subtree, variable, values), total)
            return [*subtrees[:height], _flat(total, variable), *subtrees[height + 1 :]]

        branches = [partial(carried, height) for height in heights]
        return number + 1, tf.switch_case(tf.gather(num_complete, number), branches)

    def empty(spec: tf.TensorSpec) -> tf.Tensor:  # written before it is read
        sizes = [size or 0 for size in spec.shape.as_list()]
        return tf.raw_ops.Empty(shape=sizes, dtype=spec.dtype, init=False)

    _, subtrees = tf.while_loop(
        lambda number, _: number < count,
        one_shard,
        (tf.constant(0), [[*map(empty, state)] for _ in heights]),
        shape_invariants=(tf.TensorShape([]), [[spec.shape for spec in state] for _ in heights]),
        parallel_iterations=1,  # shards are to keep the others out of memory
    )
    *higher, total = [
        _restored(subtrees[height], variable, like)
        for height in reversed(heights)
        if count >> height & 1
    ]
    for subtree in reversed(higher):
        total = _add(subtree, total)
    return total


def _add(left: list[Gradient], right: list[Gradient]) -> list[Gradient]:
    return [add(a, b) for a, b in zip(left, right, strict=True)]


def _flat(values: Sequence[Gradient], variable: Sequence[bool]) -> list[tf.Tensor]:
    """Return values as the state of a loop.

    Args:
        variable: for each, whether it may be in rows; such a one is two tensors: its indices, none
            if it is dense, and its values.
    """
    tensors = []
    for value, is_variable in zip(values, variable, strict=True):
        if is_variable:
            has_rows = isinstance(value, tf.IndexedSlices)
            tensors.append(value.indices if has_rows else tf.zeros([0], tf.int64))
        tensors.append(values_of(value))
    return tensors


def _restored(
    tensors: Sequence[tf.Tensor], variable: Sequence[bool], like: Sequence[Gradient]
) -> list[Gradient]:
    """Return what `_flat` was given, each value in rows or dense as one of `like`."""
    rest = iter(tensors)
    values: list[Gradient] = []
    for is_variable, other in zip(variable, like, strict=True):
        indices = next(rest) if is_variable else None
        value = next(rest)
        if isinstance(other, tf.IndexedSlices):
            value = tf.IndexedSlices(value, indices)
        elif is_variable:
            value = tf.ensure_shape(value, other.shape)
        values.append(value)
    return values


def cut(batch: Nest, parts: int) -> Callable[[int | tf.Tensor], Nest]:
    """Cut a nest of tensors, [B, ...], into equal parts; return a function that returns one."""
    if parts == 1:
        return lambda part: batch
    stacked = tf.nest.map_structure(
        lambda x: reshaped(x, [parts, x.shape[0] // parts], x, start=1), batch
    )
    return lambda part: tf.nest.map_structure(lambda x: x[part], stacked)


def of_each_shard(fn: Callable[[Nest], Any], batch: Nest, count: int) -> Any:
    """Return what a function makes of each of `count` shards of a nest, [B, ...], concatenated.

    A loop in the graph, because side by side TensorFlow's optimizer would join them again: it moves
    elementwise operations behind the concatenation of their results.
    """
    if count == 1:
        return fn(batch)
    shard = cut(batch, count)
    enter = randomness.split_part(count)

    def one_shard(number: tf.Tensor) -> Any:
        with enter(number):
            return fn(shard(number))

    # What it returns must be known before the loop: a function is traced first, and only once.
    traced = tf.function(one_shard, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int32)
    )
    signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, traced.structured_outputs)
    stacked = tf.map_fn(traced, tf.range(count), fn_output_signature=signature)
    return tf.nest.map_structure(lambda x: reshaped(x, [count * x.shape[1]], x, start=2), stacked)
