"""What the optimizers have in common: updates by rows, decoupled weight decay, slots.

A table is updated by the rows of its gradient, without reading its other rows. Weight decay
(Loshchilov and Hutter 2019) is the same of all optimizers that have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Slots: TypeAlias = dict[str, tf.Tensor]
Change: TypeAlias = Callable[..., tuple[tf.Tensor, Slots]]
"""Returns what is subtracted from a variable, and the new values of its slots.

It is called with keywords: `grad`, `value` and `slots` are the gradient of a variable, its value
and those of its slots; `rate` and `count` are scalars: the learning rate, and the number of the
update, from 1.
"""


SlotShapes: TypeAlias = Callable[[tf.Variable], Mapping[str, tf.TensorShape]]


class RowUpdates:
    """Takes gradients in rows; each row is once in them.

    For a subclass of it and then of an optimizer of `tf.keras.optimizers.legacy` whose
    `_resource_apply_sparse` changes no other rows.
    """

    lazy = False
    can_be_lazy = True

    def updates_rows(self, variable: tf.Variable) -> bool:
        """Return whether a variable is updated by the rows of its gradient."""
        return self.lazy or self._keeps_other_rows(variable)

    def _keeps_other_rows(self, variable: tf.Variable) -> bool:
        """Return whether the dense computation keeps rows whose gradient is zero, to the bit."""
        return False

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
    ) -> tf.Operation:
        # Keras adds up the rows of an index here, and there is but one of each.
        optimizer: Any = self
        return optimizer._resource_apply_sparse(grad, var, indices, apply_state)


def add_to_rows(variable: tf.Variable, indices: tf.Tensor, change: tf.Tensor) -> tf.Operation:
    """Add to rows of a variable, in one operation: no update of another worker is lost."""
    return tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=indices, updates=change)


def read_rows(variable: tf.Variable, indices: tf.Tensor) -> tf.Tensor:
    """Return rows of a variable; `tf.gather` would read the whole of one that is mirrored."""
    return tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=indices, dtype=variable.dtype.base_dtype
    )


def is_decayed(value: tf.Tensor) -> bool:
    """Return whether weight decay applies: not to biases, nor to scales of normalizations."""
    return value.shape.rank >= 2


class WeightDecay(RowUpdates):
    """Precedes a fused kernel by `variable -= learning_rate * weight_decay * variable`.

    For a subclass of it and then of an optimizer of `tf.keras.optimizers.legacy`. Only matrices and
    convolution kernels are decayed; vectors and scalars are not, as is usual.
    """

    def __init__(self, learning_rate: Any, *, weight_decay: float, **options: Any) -> None:
        optimizer: Any = super()
        optimizer.__init__(learning_rate, **options)
        self.weight_decay = weight_decay
        self.decays: Callable[[Any], bool] = is_decayed

    def _resource_apply_dense(
        self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None
    ) -> tf.Operation:
        optimizer: Any = super()
        if not self._decays(var):
            return optimizer._resource_apply_dense(grad, var, apply_state)
        rate = apply_state[(var.device, var.dtype.base_dtype)]["lr_t"]
        # The decay must come before the kernel reads the variable.
        with tf.control_dependencies([var.assign_sub(rate * self.weight_decay * var)]):
            return optimizer._resource_apply_dense(grad, var, apply_state)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
    ) -> tf.Operation:
        optimizer: Any = super()
        if not self._decays(var):
            return optimizer._resource_apply_sparse(grad, var, indices, apply_state)
        rate = apply_state[(var.device, var.dtype.base_dtype)]["lr_t"]
        decay = -rate * self.weight_decay * read_rows(var, indices)
        with tf.control_dependencies([add_to_rows(var, indices, decay)]):
            return optimizer._resource_apply_sparse(grad, var, indices, apply_state)

    def _decays(self, variable: tf.Variable) -> bool:
        return bool(self.weight_decay) and self.decays(variable)


class SlotOptimizer(RowUpdates, tf.keras.optimizers.legacy.Optimizer):
    """Computes an update in TensorFlow, from a variable, its gradient and its slots.

    The change is subtracted from the variable in one operation, so no update is lost where workers
    update without waiting for each other.

    Args:
        weight_decay: decoupled, of matrices and kernels alone.
        shapes: returns the shapes of a variable's slots by name, of all or of some; None: all are
            as large as the variable.
        by_rows: whether a row's change follows from that row alone.
    """

    def __init__(
        self,
        name: str,
        learning_rate: Any,
        change: Change,
        slots: Sequence[str],
        weight_decay: float = 0.0,
        shapes: SlotShapes | None = None,
        *,
        by_rows: bool = False,
    ) -> None:
        super().__init__(name)
        self._set_hyper("learning_rate", learning_rate)
        self._change = change
        self._all_slots = list(slots)
        self._shapes = shapes
        self._weight_decay = weight_decay
        self.decays: Callable[[Any], bool] = is_decayed
        self.can_be_lazy = by_rows

    def get_slot_names(self) -> list[str]:
        """Return the names of all slots, also if no variable has one of them."""
        return self._all_slots

    def _slot_shapes(self, variable: tf.Variable) -> Mapping[str, tf.TensorShape]:
        if self._shapes is None:
            return dict.fromkeys(self._all_slots, variable.shape)
        return self._shapes(variable)

    def _create_slots(self, var_list: list[tf.Variable]) -> None:
        for variable in var_list:
            for slot, shape in self._slot_shapes(variable).items():
                self.add_slot(variable, slot, shape=shape)

    def _resource_apply_dense(
        self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None
    ) -> tf.Operation:
        kept = {slot: self.get_slot(var, slot) for slot in self._slot_shapes(var)}
        values = {slot: variable.read_value() for slot, variable in kept.items()}
        change, slots = self._changes(grad, var, var.read_value(), values, apply_state)
        updates = [variable.assign(slots[slot]) for slot, variable in kept.items()]
        return tf.group(var.assign_sub(change), *updates)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
    ) -> tf.Operation:
        kept = {slot: self.get_slot(var, slot) for slot in self._slot_shapes(var)}
        values = {slot: read_rows(variable, indices) for slot, variable in kept.items()}
        change, slots = self._changes(grad, var, read_rows(var, indices), values, apply_state)
        with tf.control_dependencies([change]):
            updates = [
                tf.raw_ops.ResourceScatterUpdate(
                    resource=variable.handle, indices=indices, updates=slots[slot]
                )
                for slot, variable in kept.items()
            ]
            return tf.group(add_to_rows(var, indices, -change), *updates)

    def _changes(
        self, grad: tf.Tensor, var: tf.Variable, value: tf.Tensor, slots: Slots, apply_state: Any
    ) -> tuple[tf.Tensor, Slots]:
        """Return what is subtracted from a variable's value, and the new values of its slots."""
        rate = apply_state[(var.device, var.dtype.base_dtype)]["lr_t"]
        count = tf.cast(self.iterations + 1, value.dtype)
        change, slots = self._change(grad=grad, value=value, slots=slots, rate=rate, count=count)
        if self._weight_decay and self.decays(var):
            change += rate * self._weight_decay * value
        return change, slots


def norm_ratio(value: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
    """Return |value| / |update|, a scalar; 1 where either is zero."""
    numerator, denominator = tf.norm(value), tf.norm(update)
    is_usable = (numerator > 0.0) & (denominator > 0.0)
    return tf.where(is_usable, numerator / tf.where(is_usable, denominator, 1.0), 1.0)


def adam_direction(
    grad: tf.Tensor, slots: Slots, count: tf.Tensor, betas: tuple[float, float], epsilon: float
) -> tuple[tf.Tensor, Slots]:
    """Return Adam's update at the learning rate 1 (Kingma and Ba 2015), and its slots `m`, `v`."""
    beta_1, beta_2 = betas
    mean = beta_1 * slots["m"] + (1.0 - beta_1) * grad
    square = beta_2 * slots["v"] + (1.0 - beta_2) * tf.square(grad)
    scale = tf.sqrt(square / _complement(beta_2, count)) + epsilon
    return mean / _complement(beta_1, count) / scale, {"m": mean, "v": square}


def _complement(beta: float, count: tf.Tensor) -> tf.Tensor:
    """Return 1 - beta ** count without the cancellation, for at first the two are nearly equal."""
    return -tf.math.expm1(count * math.log(beta)) if beta else tf.ones_like(count)
