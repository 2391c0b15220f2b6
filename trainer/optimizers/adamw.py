"""Adam with decoupled weight decay."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt
from trainer.optimizers.adam import Adam
from trainer.optimizers.common import WeightDecay


def adamw(
    learning_rate: Any,
    *,
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9,
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.999,
    epsilon: Annotated[float, Gt(0)] = 1e-7,
    weight_decay: Annotated[float, Ge(0)] = 0.01,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""
    return AdamW(
        learning_rate,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        weight_decay=weight_decay,
        name="AdamW",
    )


class AdamW(WeightDecay, Adam):
    """Adam's fused kernel after the decay."""
