"""Lion: updates of one size, in the direction of an averaged gradient's sign."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Lt
from trainer.optimizers.common import SlotOptimizer, Slots


def lion(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9,
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.99,
    weight_decay: Annotated[float, Ge(0)] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Evolved sign momentum (Chen et al. 2023): w -= rate * sign(beta_1 * m + (1 - beta_1) * g)."""

    def change(grad: tf.Tensor, slots: Slots, rate: tf.Tensor, **_: Any) -> tuple[tf.Tensor, Slots]:
        direction = tf.sign(beta_1 * slots["m"] + (1.0 - beta_1) * grad)
        return rate * direction, {"m": beta_2 * slots["m"] + (1.0 - beta_2) * grad}

    return SlotOptimizer("Lion", learning_rate, change, ("m",), weight_decay, by_rows=True)
