"""LARS: momentum whose rate follows each layer's size, for large batches."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.optimizers.slot_optimizer import SlotOptimizer, is_decayed, norm_ratio


def lars(
    learning_rate: Any,
    *,
    momentum: Annotated[float, ">= 0, < 1"] = 0.9,
    trust_coefficient: Annotated[float, "> 0"] = 0.001,
    weight_decay: Annotated[float, ">= 0"] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017).

    Args:
        learning_rate: the global learning rate.
        momentum: share of the last update that is kept.
        trust_coefficient: size of a layer's update in proportion to its weights.
        weight_decay: added to the gradient; of matrices and kernels alone, as is the scaling.
    """
    return Lars(learning_rate, momentum, trust_coefficient, weight_decay)


class Lars(SlotOptimizer):
    """v = momentum * v + rate * trust * |w| / |g + decay * w| * (g + decay * w); w -= v."""

    slots = ("v",)

    def __init__(
        self, learning_rate: Any, momentum: float, trust_coefficient: float, weight_decay: float
    ) -> None:
        super().__init__(learning_rate, "Lars")
        self._momentum = momentum
        self._trust_coefficient = trust_coefficient
        self._weight_decay = weight_decay

    def changed(
        self, grad: tf.Tensor, value: tf.Tensor, slots: dict[str, tf.Tensor], rate: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        if is_decayed(value):
            grad += self._weight_decay * value
            grad *= norm_ratio(self._trust_coefficient * value, grad)
        moved = self._momentum * slots["v"] + rate * grad
        return value - moved, {"v": moved}
