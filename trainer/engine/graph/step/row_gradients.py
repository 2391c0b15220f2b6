"""Gradients of tables of which a step looks up few rows: the rows alone, as `tf.IndexedSlices`.

A tape returns a row for each lookup. Here they become one row for each that is touched, and stay so
through all sums, the exchange and the update. A sum adds, row by row, what the dense computation
adds, and leaves out zeros: so it has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from trainer.engine.graph.placement.step_devices import on_own_device
from trainer.errors import ConfigError
from trainer.protocols import OptimizerDefaults, with_defaults

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices

SHARE = 8
"""A gradient stays in rows if the table has at least so many times the rows that are looked up."""

LEAST_SIZE = 2**16
"""Numbers of the smallest table whose gradient stays in rows."""

_HALF = 2**16  # of an identifier: float32 has each half exactly


def may_have_rows(shape: tf.TensorShape) -> bool:
    """Return whether the gradient of a variable of this shape may stay in rows."""
    return shape.rank >= 2 and shape.num_elements() >= LEAST_SIZE and shape[0] >= SHARE


def stays_in_rows(gradient: Gradient, shape: tf.TensorShape, lookups: int) -> bool:
    """Return whether a gradient stays in rows; it follows from what all layouts have in common.

    Args:
        lookups: how many rows the global batch looks up, a row that comes again included.
    """
    is_in_rows = isinstance(gradient, tf.IndexedSlices) and may_have_rows(shape)
    return is_in_rows and 0 < lookups * SHARE <= shape[0]


def combine(gradient: Gradient) -> Gradient:
    """Add up the rows of each index, in their order: it is there once; dense ones are as they are.

    XLA cannot do it: it has no tensors whose shape depends on values.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices)


def add_rows(left: tf.IndexedSlices, right: tf.IndexedSlices) -> tf.IndexedSlices:
    """Add two gradients in which each index is once."""
    return combine(
        tf.IndexedSlices(
            tf.concat([left.values, right.values], axis=0),
            tf.concat([left.indices, right.indices], axis=0),
        )
    )


def in_order(gradient: Gradient) -> Gradient:
    """Return a gradient with its rows by ascending index; one that is dense as it is."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    order = tf.argsort(gradient.indices)
    return tf.IndexedSlices(tf.gather(gradient.values, order), tf.gather(gradient.indices, order))


def of_static_size(rows: tf.IndexedSlices, size: int) -> tf.IndexedSlices:
    """Return rows of a static number, `size` or more than there are: further ones are of zeros."""
    missing = size - tf.size(rows.indices)
    indices = tf.concat([rows.indices, tf.fill([missing], rows.indices[0])], axis=0)
    values = tf.pad(rows.values, [[0, missing], *[[0, 0]] * (rows.values.shape.rank - 1)])
    return tf.IndexedSlices(
        tf.ensure_shape(values, [size, *rows.values.shape[1:]]), tf.ensure_shape(indices, [size])
    )


def unite(
    gradients: Sequence[Gradient],
    number: tf.Tensor,
    count: int,
    sum_exactly: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    *,
    static_shapes: bool,
) -> tuple[list[tf.Tensor], list[tf.Tensor | None]]:
    """Give gradients in rows the same rows on all replicas, so that these can be summed as tensors.

    Args:
        gradients: those of this replica; rows are of a static number, equal everywhere.
        number: number of this replica, int32 scalar.
        sum_exactly: sums float32 tensors of static shapes over the replicas.
        static_shapes: whether the tensors' shapes must be known before the step.

    Returns:
        The gradients as tensors; those in rows with one for each row of any replica, and if shapes
        must be static with `count` times their own number, of zeros at the end. And for each of
        these the indices of all replicas, ascending; None for the others.
    """
    rows = [x for x in gradients if isinstance(x, tf.IndexedSlices)]
    if not rows:
        return list(gradients), [None] * len(gradients)
    is_own = tf.cast(tf.equal(tf.range(count), number), tf.float32)[:, None]
    halves = [
        tf.cast(half, tf.float32)[None] * is_own
        for x in rows
        for half in (x.indices // _HALF, x.indices % _HALF)
    ]
    halves = [tf.cast(half, tf.int64) for half in sum_exactly(halves)]
    gathered = iter(zip(halves[::2], halves[1::2], strict=True))
    tensors: list[tf.Tensor] = []
    united: list[tf.Tensor | None] = []
    for gradient in gradients:
        indices = None
        if isinstance(gradient, tf.IndexedSlices):
            high, low = next(gathered)
            indices = tf.sort(tf.unique(tf.reshape(high * _HALF + low, [-1]))[0])
            size = count * gradient.indices.shape[0] if static_shapes else tf.size(indices)
            positions = tf.searchsorted(indices, tf.cast(gradient.indices, tf.int64))
            gradient = tf.math.unsorted_segment_sum(gradient.values, positions, size)
        tensors.append(gradient)
        united.append(indices)
    return tensors, united


def reunited(summed: Sequence[tf.Tensor], united: Sequence[tf.Tensor | None]) -> list[Gradient]:
    """Return the sums of what `unite` returned, in rows again."""
    return [
        x if indices is None else tf.IndexedSlices(x[: tf.size(indices)], indices)
        for x, indices in zip(summed, united, strict=True)
    ]


def map_values(gradient: Gradient, function: Callable[[tf.Tensor], tf.Tensor]) -> Gradient:
    """Apply a function that keeps shapes and zeros to a gradient, or to its rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices)
    return function(gradient)


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return a gradient that is dense, or the values of its rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def own_shares(
    gradients: Sequence[Gradient], is_first: tf.Tensor, count: int, *, in_tree: bool
) -> list[Gradient]:
    """Return what a replica gives to an optimizer that adds up over the replicas itself.

    Args:
        is_first: whether this is the first replica, bool scalar.
        in_tree: whether the sum must have the gradients' bits: of three thirds it may not.
    """

    def share(gradient: Gradient) -> Gradient:
        if isinstance(gradient, tf.IndexedSlices):
            # It concatenates rows: all of one replica, and none of others.
            size = tf.where(is_first, tf.size(gradient.indices), 0)
            return tf.IndexedSlices(gradient.values[:size], gradient.indices[:size])
        return tf.where(is_first, gradient, -0.0) if in_tree else gradient / count

    return [share(gradient) for gradient in gradients]


def scaled(gradients: Sequence[Gradient], factor: float | tf.Tensor) -> list[Gradient]:
    """Return gradients times a factor."""
    return [on_own_device(map_values, x, lambda values: values * factor) for x in gradients]


def is_finite(gradient: Gradient) -> tf.Tensor:
    """Return whether all numbers of a gradient are finite, bool scalar."""
    return tf.reduce_all(tf.math.is_finite(values_of(gradient)))


def as_dense(gradient: Gradient, shape: tf.TensorShape) -> tf.Tensor:
    """Return a gradient of a variable of this shape as a tensor."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])


def for_optimizer(
    gradients: Sequence[Gradient],
    variables: Sequence[tf.Variable],
    optimizer: Any,
    note_rows: Callable[[Any, tf.Variable], None],
) -> list[Gradient]:
    """Return gradients as an optimizer takes them: in rows if it `updates_rows` of a variable."""
    view = with_defaults(optimizer, OptimizerDefaults)
    result = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            note_rows(optimizer, variable)
            if variable.constraint is not None or not view.updates_rows(
                variable
            ):  # it is of the whole
                gradient = on_own_device(as_dense, gradient, variable.shape)
        result.append(gradient)
    if view.lazy and not any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        raise ConfigError(
            f"optimizer: lazy (true) has no effect, for no weight of {optimizer._name} is looked "
            "up by rows, as an embedding is; remove it"
        )
    return result


def allow_reads(gradients: Sequence[Gradient], variables: Sequence[tf.Variable]) -> None:
    """Have whole tables read again without a copy after an update by rows.

    TensorFlow copies what is read once a table was read or updated by rows; and a mirrored table,
    or one of Keras 3, is read as a whole to look up some rows.
    """
    for gradient, variable in zip(gradients, variables, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
