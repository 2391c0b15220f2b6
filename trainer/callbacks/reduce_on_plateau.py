"""Reduces the learning rate when a metric stops improving, with its state in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import tensorflow as tf

from trainer.annotations import Ge, Gt, Lt
from trainer.callbacks.early_stopping import Patience
from trainer.engine.graph.state.variables import replicated


class ReduceOnPlateau(Patience):
    """Multiplies the learning rate by `factor` after `patience` evaluations without improvement.

    Attributes:
        scale: the product of all reductions so far, float32.
        cooling: evaluations left in the cooldown, int64.
    """

    def __init__(
        self,
        *,
        metric: str = "loss",
        mode: Literal["auto", "max", "min"] = "auto",
        factor: Annotated[float, Gt(0), Lt(1)] = 0.1,
        patience: Annotated[int, Ge(1)] = 5,
        min_delta: Annotated[float, Ge(0)] = 0.0,
        cooldown: Annotated[int, Ge(0)] = 0,
        min_learning_rate: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        super().__init__(
            "reduce_on_plateau", metric=metric, mode=mode, patience=patience, min_delta=min_delta
        )
        self.factor = factor
        self.cooldown = cooldown
        self.min_learning_rate = min_learning_rate
        self.scale = replicated(tf.constant(1.0), "scale")
        self.cooling = tf.Variable(0, dtype=tf.int64, trainable=False, name="cooling")

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Reduce the learning rate if the patience is exhausted; return False: never stop."""
        cooling = int(self.cooling.numpy())
        if self.is_exhausted_by(metrics, counts=cooling == 0):
            self.scale.assign(self.scale.read_value() * self.factor)
            self.waited.assign(0)
            self.cooling.assign(self.cooldown)
        elif cooling:
            self.cooling.assign(cooling - 1)
        return False

    def adjust_learning_rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the reduced rate; one that the schedule sets below the minimum is kept."""
        return tf.minimum(rate, tf.maximum(rate * self.scale.read_value(), self.min_learning_rate))
