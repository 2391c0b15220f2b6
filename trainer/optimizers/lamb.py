"""LAMB: Adam whose rate follows each layer's size, for large batches."""

from __future__ import annotations

import math
from typing import Annotated, Any

import tensorflow as tf

from trainer.optimizers.slot_optimizer import SlotOptimizer, is_decayed, norm_ratio


def lamb(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, ">= 0, < 1"] = 0.9,
    beta_2: Annotated[float, ">= 0, < 1"] = 0.999,
    epsilon: Annotated[float, "> 0"] = 1e-6,
    weight_decay: Annotated[float, ">= 0"] = 0.01,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Layer-wise adaptive moments (You et al. 2020).

    Args:
        learning_rate: the global learning rate.
        beta_1: decay of the running mean of gradients.
        beta_2: decay of the running mean of squared gradients.
        epsilon: keeps the division finite.
        weight_decay: decoupled; of matrices and kernels alone, as is the scaling.
    """
    return Lamb(learning_rate, beta_1, beta_2, epsilon, weight_decay)


class Lamb(SlotOptimizer):
    """u = Adam's direction + decay * w; w -= rate * |w| / |u| * u."""

    slots = ("m", "v")

    def __init__(
        self,
        learning_rate: Any,
        beta_1: float,
        beta_2: float,
        epsilon: float,
        weight_decay: float,
    ) -> None:
        super().__init__(learning_rate, "Lamb")
        self._beta_1 = beta_1
        self._beta_2 = beta_2
        self._epsilon = epsilon
        self._weight_decay = weight_decay

    def changed(
        self, grad: tf.Tensor, value: tf.Tensor, slots: dict[str, tf.Tensor], rate: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        count = tf.cast(self.iterations + 1, value.dtype)
        mean = self._beta_1 * slots["m"] + (1.0 - self._beta_1) * grad
        square = self._beta_2 * slots["v"] + (1.0 - self._beta_2) * tf.square(grad)
        unbiased = mean / _complement(self._beta_1, count)
        scale = square / _complement(self._beta_2, count)
        update = unbiased / (tf.sqrt(scale) + self._epsilon)
        if is_decayed(value):
            update += self._weight_decay * value
            update *= norm_ratio(value, update)
        return value - rate * update, {"m": mean, "v": square}


def _complement(beta: float, count: tf.Tensor) -> tf.Tensor:
    """Return 1 - beta ** count without the cancellation, for at first the two are nearly equal."""
    return -tf.math.expm1(count * math.log(beta)) if beta else tf.ones_like(count)
