"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf


def sgd(
    learning_rate: Any, *, momentum: Annotated[float, ">= 0, < 1"] = 0.9, nesterov: bool = False
) -> tf.keras.optimizers.legacy.Optimizer:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013)."""
    return tf.keras.optimizers.legacy.SGD(learning_rate, momentum=momentum, nesterov=nesterov)
