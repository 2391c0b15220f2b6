"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic
from trainer.optimizers.weight_decay import WeightDecay


def sgd(
    learning_rate: Any,
    *,
    momentum: Annotated[float, Ge(0), Lt(1), Semantic(apart=(0, None))] = 0.9,
    nesterov: bool = False,
    weight_decay: Annotated[float, Ge(0)] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013)."""
    return SGD(learning_rate, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


class SGD(WeightDecay, tf.keras.optimizers.legacy.SGD):
    """The fused kernel of gradient descent, with or without momentum, after the decay."""
