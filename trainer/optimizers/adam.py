"""Adam."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt
from trainer.optimizers.common import RowUpdates, add_to_rows, read_rows


def adam(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9,
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.999,
    epsilon: Annotated[float, Gt(0)] = 1e-7,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Adam (Kingma and Ba 2015)."""
    return Adam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


class Adam(RowUpdates, tf.keras.optimizers.legacy.Adam):
    """Adam's fused kernel, and the same numbers for rows, which it does not support."""

    nesterov = False

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
    ) -> tf.Operation:
        numbers = apply_state[(var.device, var.dtype.base_dtype)]
        mean_slot, square_slot = self.get_slot(var, "m"), self.get_slot(var, "v")
        mean, square = read_rows(mean_slot, indices), read_rows(square_slot, indices)
        mean_change = (grad - mean) * (1.0 - numbers["beta_1_t"])
        square_change = (tf.square(grad) - square) * (1.0 - numbers["beta_2_t"])
        mean += mean_change
        if self.nesterov:
            mean = grad * (1.0 - numbers["beta_1_t"]) + numbers["beta_1_t"] * mean
        # In the order of the kernel's: the same bits.
        rate = numbers["lr_t"] * tf.sqrt(1.0 - numbers["beta_2_power"])
        rate /= 1.0 - numbers["beta_1_power"]
        change = mean * rate / (tf.sqrt(square + square_change) + numbers["epsilon"])
        with tf.control_dependencies([change]):
            return tf.group(
                add_to_rows(mean_slot, indices, mean_change),
                add_to_rows(square_slot, indices, square_change),
                add_to_rows(var, indices, -change),
            )
