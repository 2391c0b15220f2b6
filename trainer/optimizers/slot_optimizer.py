"""The base of optimizers that TensorFlow has no fused kernel for."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf


class SlotOptimizer(tf.keras.optimizers.legacy.Optimizer):
    """Computes an update in TensorFlow, from a variable, its gradient and its slots.

    Attributes:
        slots: names of the variables that are kept beside each trained one.

    Args:
        learning_rate: a number or a schedule.
        name: name of the optimizer.
    """

    slots: ClassVar[tuple[str, ...]] = ()

    def __init__(self, learning_rate: Any, name: str) -> None:
        super().__init__(name)
        self._set_hyper("learning_rate", learning_rate)

    def changed(
        self, grad: tf.Tensor, value: tf.Tensor, slots: dict[str, tf.Tensor], rate: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the new value of a variable and of its slots.

        Args:
            grad: its gradient.
            value: its value.
            slots: the values of its slots, by name.
            rate: the learning rate, a scalar.
        """
        raise NotImplementedError

    def _create_slots(self, var_list: list[tf.Variable]) -> None:
        for variable in var_list:
            for slot in self.slots:
                self.add_slot(variable, slot)

    def _resource_apply_dense(
        self, grad: tf.Tensor, var: tf.Variable, apply_state: Any = None
    ) -> tf.Operation:
        rate = apply_state[(var.device, var.dtype.base_dtype)]["lr_t"]
        kept = {slot: self.get_slot(var, slot) for slot in self.slots}
        value, slots = self.changed(
            grad,
            var.read_value(),
            {slot: variable.read_value() for slot, variable in kept.items()},
            rate,
        )
        updates = [variable.assign(slots[slot]) for slot, variable in kept.items()]
        return tf.group(var.assign(value), *updates)


def is_decayed(value: tf.Tensor) -> bool:
    """Return whether weight decay applies: not to biases, nor to scales of normalisations."""
    return value.shape.rank >= 2


def norm_ratio(value: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
    """Return |value| / |update|, a scalar; 1 where either is zero."""
    numerator, denominator = tf.norm(value), tf.norm(update)
    is_usable = (numerator > 0.0) & (denominator > 0.0)
    return tf.where(is_usable, numerator / tf.where(is_usable, denominator, 1.0), 1.0)
