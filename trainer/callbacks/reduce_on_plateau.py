"""A smaller learning rate when a metric no longer improves, with its memory in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import tensorflow as tf

from trainer.callbacks.patience import Patience
from trainer.state import replicated


class ReduceOnPlateau(Patience):
    """Multiplies the learning rate by `factor` when a metric of the test split has not improved for `patience` evaluations.

    Attributes:
        scale: what the schedule is multiplied by so far, float32.
        cooling: evaluations of the cooldown that are still to come, int64.

    Args:
        metric: the metric that is watched.
        mode: whether larger (max) or smaller (min) is better.
        factor: by what the learning rate is multiplied each time.
        patience: evaluations without improvement that make it so.
        min_delta: by how much the metric must change to count as better.
        cooldown: evaluations after a reduction that do not count as ones without improvement.
        min_learning_rate: the learning rate is not reduced below this.
    """

    def __init__(
        self,
        *,
        metric: str = "loss",
        mode: Literal["max", "min"] = "min",
        factor: Annotated[float, "> 0, < 1"] = 0.1,
        patience: Annotated[int, ">= 1"] = 5,
        min_delta: Annotated[float, ">= 0"] = 0.0,
        cooldown: Annotated[int, ">= 0"] = 0,
        min_learning_rate: Annotated[float, ">= 0"] = 0.0,
    ) -> None:
        super().__init__("reduce_on_plateau", metric=metric, mode=mode, patience=patience, min_delta=min_delta)
        self.factor, self.cooldown, self.min_learning_rate = factor, cooldown, min_learning_rate
        self.scale = replicated(tf.constant(1.0), "scale")
        self.cooling = tf.Variable(0, dtype=tf.int64, trainable=False, name="cooling")

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Compares the metric with the best so far; never stops."""
        cooling = int(self.cooling.numpy())
        if self.is_exhausted_by(metrics, counts=cooling == 0):
            self.scale.assign(self.scale.read_value() * self.factor)
            self.waited.assign(0)
            self.cooling.assign(self.cooldown)
        elif cooling:
            self.cooling.assign(cooling - 1)
        return False

    def adjust_learning_rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Reduces what the schedule gives; a rate that the schedule itself has below the minimum stays as it is."""
        return tf.minimum(rate, tf.maximum(rate * self.scale.read_value(), self.min_learning_rate))
