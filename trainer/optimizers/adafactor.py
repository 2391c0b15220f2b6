"""Adafactor: adaptive rates whose memory grows with a matrix's sides, not with its area."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt
from trainer.optimizers.common import SlotOptimizer, Slots, is_decayed


def adafactor(
    learning_rate: Any,
    *,
    decay_power: Annotated[float, Gt(0)] = 0.8,
    clip_threshold: Annotated[float, Gt(0)] = 1.0,
    smallest_scale: Annotated[float, Gt(0)] = 1e-3,
    epsilon: Annotated[float, Gt(0)] = 1e-30,
    weight_decay: Annotated[float, Ge(0)] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Adafactor without momentum (Shazeer and Stern 2018, algorithms 4 and 5).

    The squared gradients of a matrix are kept as means of its rows and of its columns; of a kernel
    of more dimensions, those of the last two.
    """

    def change(
        grad: tf.Tensor, value: tf.Tensor, slots: Slots, rate: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        kept = 1.0 - tf.pow(count, -decay_power)
        square = tf.square(grad) + epsilon
        means = {"v": square}
        if is_decayed(value):
            means = {"row": tf.reduce_mean(square, -1), "column": tf.reduce_mean(square, -2)}
        new = {name: kept * slots[name] + (1.0 - kept) * mean for name, mean in means.items()}
        update = grad * _inverse_root(new)
        update /= tf.maximum(1.0, _root_mean_square(update) / clip_threshold)
        return rate * tf.maximum(smallest_scale, _root_mean_square(value)) * update, new

    slots = ("v", "row", "column")
    return SlotOptimizer("Adafactor", learning_rate, change, slots, weight_decay, _slot_shapes)


def _slot_shapes(variable: tf.Variable) -> dict[str, tf.TensorShape]:
    shape = variable.shape
    if shape.rank < 2:
        return {"v": shape}
    return {"row": shape[:-1], "column": shape[:-2] + shape[-1:]}


def _inverse_root(slots: Slots) -> tf.Tensor:
    """Return 1 / sqrt(mean of the squared gradients), of a shape that the variable's fits."""
    if "v" in slots:
        return tf.math.rsqrt(slots["v"])
    row = slots["row"] / tf.reduce_mean(slots["row"], -1, keepdims=True)
    return tf.math.rsqrt(row)[..., None] * tf.math.rsqrt(slots["column"])[..., None, :]


def _root_mean_square(value: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(value)))
