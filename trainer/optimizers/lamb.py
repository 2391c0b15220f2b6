"""LAMB: Adam whose rate follows each layer's size, for large batches."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt
from trainer.optimizers.common import SlotOptimizer, Slots, adam_direction, is_decayed, norm_ratio


def lamb(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9,
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.999,
    epsilon: Annotated[float, Gt(0)] = 1e-6,
    weight_decay: Annotated[float, Ge(0)] = 0.01,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Layer-wise adaptive moments (You et al. 2020).

    u = Adam's direction + decay * w; w -= rate * |w| / |u| * u.
    """

    def change(
        grad: tf.Tensor, value: tf.Tensor, slots: Slots, rate: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        update, slots = adam_direction(grad, slots, count, (beta_1, beta_2), epsilon)
        if is_decayed(value):
            update += weight_decay * value
            update *= norm_ratio(value, update)
        return rate * update, slots

    return SlotOptimizer("Lamb", learning_rate, change, ("m", "v"))
