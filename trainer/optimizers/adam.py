"""Adam."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt


def adam(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9,
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.999,
    epsilon: Annotated[float, Gt(0)] = 1e-7,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Adam (Kingma and Ba 2015)."""
    return tf.keras.optimizers.legacy.Adam(
        learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon
    )
