"""Adam with decoupled weight decay."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf


def adamw(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, ">= 0, < 1"] = 0.9,
    beta_2: Annotated[float, ">= 0, < 1"] = 0.999,
    epsilon: Annotated[float, "> 0"] = 1e-7,
    weight_decay: Annotated[float, ">= 0"] = 0.01,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""
    return AdamW(
        learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, weight_decay=weight_decay
    )


class AdamW(tf.keras.optimizers.legacy.Adam):
    """Adam's fused kernel after `variable -= learning_rate * weight_decay * variable`.

    Only matrices and convolution kernels are decayed; vectors and scalars (biases, the scale and
    offset of normalisations) are not, as is usual.
    """

    def __init__(self, learning_rate: Any, *, weight_decay: float, **options: Any) -> None:
        super().__init__(learning_rate, name="AdamW", **options)
        self.weight_decay = weight_decay

    def _resource_apply_dense(
        self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None
    ) -> tf.Operation:
        if var.shape.rank < 2 or not self.weight_decay:
            return super()._resource_apply_dense(grad, var, apply_state)
        rate = apply_state[(var.device, var.dtype.base_dtype)]["lr_t"]
        # The decay must come before the kernel reads the variable.
        with tf.control_dependencies(
            [var.assign_sub(rate * self.weight_decay * var, use_locking=self._use_locking)]
        ):
            return super()._resource_apply_dense(grad, var, apply_state)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "weight_decay": self.weight_decay}
