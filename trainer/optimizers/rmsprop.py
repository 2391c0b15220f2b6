"""RMSprop."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt, Semantic
from trainer.optimizers.common import WeightDecay


def rmsprop(
    learning_rate: Any,
    *,
    rho: Annotated[float, Ge(0), Lt(1)] = 0.9,
    momentum: Annotated[float, Ge(0), Lt(1), Semantic(apart=(0, None))] = 0.0,
    epsilon: Annotated[float, Gt(0)] = 1e-7,
    weight_decay: Annotated[float, Ge(0)] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """RMSprop (Tieleman and Hinton 2012).

    The kernel adds its epsilon inside the root; squared, it is the same floor of the root mean
    square. Momentum is a function, because Keras does not use the fused kernel for the value 0.
    """
    return RMSprop(
        learning_rate,
        rho=rho,
        momentum=lambda: momentum,
        epsilon=epsilon**2,
        weight_decay=weight_decay,
    )


class RMSprop(WeightDecay, tf.keras.optimizers.legacy.RMSprop):
    """RMSprop's fused kernel after the decay."""
