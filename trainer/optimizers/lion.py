"""Lion: updates of one size, in the direction of an averaged gradient's sign."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.optimizers.slot_optimizer import SlotOptimizer, is_decayed


def lion(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, ">= 0, < 1"] = 0.9,
    beta_2: Annotated[float, ">= 0, < 1"] = 0.99,
    weight_decay: Annotated[float, ">= 0"] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Evolved sign momentum (Chen et al. 2023).

    Args:
        learning_rate: a third to a tenth of Adam's.
        beta_1: share of the running mean in the update's direction.
        beta_2: decay of the running mean of gradients.
        weight_decay: decoupled, and of matrices and kernels alone; three to ten times Adam's.
    """
    return Lion(learning_rate, beta_1, beta_2, weight_decay)


class Lion(SlotOptimizer):
    """variable -= rate * (sign(beta_1 * m + (1 - beta_1) * g) + decay * variable)."""

    slots = ("m",)

    def __init__(
        self, learning_rate: Any, beta_1: float, beta_2: float, weight_decay: float
    ) -> None:
        super().__init__(learning_rate, "Lion")
        self._beta_1 = beta_1
        self._beta_2 = beta_2
        self._weight_decay = weight_decay

    def changed(
        self, grad: tf.Tensor, value: tf.Tensor, slots: dict[str, tf.Tensor], rate: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        update = tf.sign(self._beta_1 * slots["m"] + (1.0 - self._beta_1) * grad)
        if is_decayed(value):
            update += self._weight_decay * value
        moved = self._beta_2 * slots["m"] + (1.0 - self._beta_2) * grad
        return value - rate * update, {"m": moved}
