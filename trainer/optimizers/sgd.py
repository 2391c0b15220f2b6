"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.optimizers.weight_decay import WeightDecay


def sgd(
    learning_rate: Any,
    *,
    momentum: Annotated[float, ">= 0, < 1"] = 0.9,
    nesterov: bool = False,
    weight_decay: Annotated[float, ">= 0"] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013)."""
    return SGD(learning_rate, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


class SGD(WeightDecay, tf.keras.optimizers.legacy.SGD):
    """The fused kernel of gradient descent, with or without momentum, after the decay."""
