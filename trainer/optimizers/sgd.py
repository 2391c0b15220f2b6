"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic
from trainer.optimizers.common import WeightDecay, add_to_rows


def sgd(
    learning_rate: Any,
    *,
    momentum: Annotated[float, Ge(0), Lt(1), Semantic(apart=(0, None))] = 0.9,
    nesterov: bool = False,
    weight_decay: Annotated[float, Ge(0)] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013)."""
    return SGD(learning_rate, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


class _GradientDescent(tf.keras.optimizers.legacy.SGD):
    """The fused kernels of gradient descent, also for rows without momentum."""

    def _resource_apply_sparse(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor, apply_state: Any = None
    ) -> tf.Operation:
        if self._momentum:
            return super()._resource_apply_sparse(grad, var, indices, apply_state)
        rate = apply_state[(var.device, var.dtype.base_dtype)]["lr_t"]
        return add_to_rows(var, indices, -grad * rate)


class SGD(WeightDecay, _GradientDescent):
    """The fused kernel of gradient descent, with or without momentum, after the decay."""

    def _keeps_other_rows(self, variable: tf.Variable) -> bool:
        return not self._momentum and not self._decays(variable)
