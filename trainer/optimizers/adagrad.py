"""Adagrad."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Gt
from trainer.optimizers.common import WeightDecay


def adagrad(
    learning_rate: Any,
    *,
    initial_accumulator: Annotated[float, Ge(0)] = 0.1,
    epsilon: Annotated[float, Gt(0)] = 1e-7,
    weight_decay: Annotated[float, Ge(0)] = 0.0,
) -> tf.keras.optimizers.legacy.Optimizer:
    """Adaptive gradients (Duchi, Hazan and Singer 2011): for rare features."""
    return Adagrad(
        learning_rate,
        initial_accumulator_value=initial_accumulator,
        epsilon=epsilon,
        weight_decay=weight_decay,
    )


class Adagrad(WeightDecay, tf.keras.optimizers.legacy.Adagrad):
    """Adagrad's fused kernel after the decay."""

    def _keeps_other_rows(self, variable: tf.Variable) -> bool:
        return not self._decays(variable)
