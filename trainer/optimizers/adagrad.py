"""Adagrad."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf


def adagrad(
    learning_rate: Any,
    *,
    initial_accumulator: Annotated[float, ">= 0"] = 0.1,
    epsilon: Annotated[float, "> 0"] = 1e-7,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Adaptive gradients (Duchi, Hazan and Singer 2011): for rare features.

    Args:
        learning_rate: the learning rate before any gradient.
        initial_accumulator: the first sum of squared gradients.
        epsilon: keeps the division finite.
    """
    return tf.keras.optimizers.legacy.Adagrad(
        learning_rate, initial_accumulator_value=initial_accumulator, epsilon=epsilon
    )
