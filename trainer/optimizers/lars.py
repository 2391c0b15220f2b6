"""LARS: momentum whose rate follows each layer's size, for large batches."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt, Semantic
from trainer.optimizers.common import SlotOptimizer, Slots, is_decayed, norm_ratio


def lars(
    learning_rate: Any,
    *,
    momentum: Annotated[float, Ge(0), Lt(1), Semantic(apart=(0, None))] = 0.9,
    trust_coefficient: Annotated[float, Gt(0)] = 0.001,
    weight_decay: Annotated[float, Ge(0)] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017).

    v = momentum * v + rate * trust * |w| / |g + decay * w| * (g + decay * w); w -= v.
    """

    def change(
        grad: tf.Tensor, value: tf.Tensor, slots: Slots, rate: tf.Tensor, **_: Any
    ) -> tuple[tf.Tensor, Slots]:
        if is_decayed(value):
            grad += weight_decay * value
            grad *= norm_ratio(trust_coefficient * value, grad)
        moved = momentum * slots["v"] + rate * grad
        return moved, {"v": moved}

    return SlotOptimizer("Lars", learning_rate, change, ("v",))
