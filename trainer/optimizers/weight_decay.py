"""Decoupled weight decay (Loshchilov and Hutter 2019): the same of all optimizers that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.optimizers.row_updates import RowUpdates, add_to_rows, read_rows


def is_decayed(value: tf.Tensor) -> bool:
    """Return whether weight decay applies: not to biases, nor to scales of normalizations."""
    return value.shape.rank >= 2


class WeightDecay(RowUpdates):
    """Precedes a fused kernel by `variable -= learning_rate * weight_decay * variable`.

    For a subclass of it and then of an optimizer of `tf.keras.optimizers.legacy`. Only matrices and
    convolution kernels are decayed; vectors and scalars are not, as is usual.

    Attributes:
        decays: returns whether a variable is decayed.
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
