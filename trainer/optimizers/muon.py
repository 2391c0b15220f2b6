"""Muon: momentum whose matrices are made orthogonal."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt, Semantic
from trainer.optimizers.common import SlotOptimizer, Slots, adam_direction

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration (Jordan et al. 2024): steepest at zero, not exact at 1."""


def muon(  # noqa: PLR0913 - every option is a key of the configuration
    learning_rate: Any,
    *,
    momentum: Annotated[float, Ge(0), Lt(1), Semantic(apart=(0, None))] = 0.95,
    iterations: Annotated[int, Ge(1)] = 5,
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9,
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.95,
    epsilon: Annotated[float, Gt(0)] = 1e-8,
    weight_decay: Annotated[float, Ge(0)] = 0.01,
    adam: list[str] = ["embeddings", "tokens", "positions"],  # noqa: B006 - never changed
) -> tf.keras.optimizers.legacy.Optimizer:
    """Momentum made orthogonal by Newton-Schulz (Jordan et al. 2024), for matrices and kernels.

    A kernel counts as the matrix of its last dimension by all others. Vectors, scalars and tables
    are updated by Adam. An update has the size of Adam's (Liu et al. 2025), so one learning rate
    fits both.
    """

    def shapes(variable: tf.Variable) -> dict[str, tf.TensorShape]:
        is_matrix = variable.shape.rank >= 2 and not any(part in variable.name for part in adam)
        return dict.fromkeys(("m",) if is_matrix else ("m", "v"), variable.shape)

    def change(
        grad: tf.Tensor, slots: Slots, rate: tf.Tensor, count: tf.Tensor, **_: Any
    ) -> tuple[tf.Tensor, Slots]:
        if "v" in slots:
            update, slots = adam_direction(grad, slots, count, (beta_1, beta_2), epsilon)
            return rate * update, slots
        mean = momentum * slots["m"] + grad
        return rate * _orthogonal(grad + momentum * mean, iterations), {"m": mean}

    return SlotOptimizer("Muon", learning_rate, change, ("m", "v"), weight_decay, shapes)


def _orthogonal(update: tf.Tensor, iterations: int) -> tf.Tensor:
    """Return a matrix of the same singular vectors whose singular values are near one size."""
    rows, columns = update.shape.num_elements() // update.shape[-1], update.shape[-1]
    matrix = tf.reshape(update, [rows, columns])
    if rows > columns:  # so that the products are of the smaller side
        matrix = tf.transpose(matrix)
    matrix /= tf.norm(matrix) + 1e-7
    a, b, c = _COEFFICIENTS
    for _ in range(iterations):
        product = tf.matmul(matrix, matrix, transpose_b=True)
        matrix = a * matrix + tf.matmul(b * product + c * tf.matmul(product, product), matrix)
    if rows > columns:
        matrix = tf.transpose(matrix)
    return 0.2 * max(rows, columns) ** 0.5 * tf.reshape(matrix, update.shape)
