"""Early stopping, with its memory in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import tensorflow as tf

from trainer.errors import ConfigError


class EarlyStopping:
    """Stops when a metric of the test split has not improved for `patience` evaluations.

    Args:
        metric: the metric that is watched.
        mode: whether larger (max) or smaller (min) is better.
        patience: evaluations without improvement that are allowed.
        min_delta: by how much the metric must change to count as better.
    """

    def __init__(
        self,
        *,
        metric: str = "accuracy",
        mode: Literal["max", "min"] = "max",
        patience: Annotated[int, ">= 1"] = 5,
        min_delta: Annotated[float, ">= 0"] = 0.0,
    ) -> None:
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self._sign = 1.0 if mode == "max" else -1.0
        self.best = tf.Variable(float("-inf"), dtype=tf.float64, trainable=False, name="best")
        self.waited = tf.Variable(0, dtype=tf.int64, trainable=False, name="waited")

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Compares the metric with the best so far."""
        if self.metric not in metrics:
            raise ConfigError(f"callbacks.early_stopping.metric ({self.metric}) is not evaluated; choose one of {', '.join(metrics)}")
        value = self._sign * metrics[self.metric]
        if value > float(self.best.numpy()) + self.min_delta:
            self.best.assign(value)
            self.waited.assign(0)
        else:
            self.waited.assign_add(1)
        return int(self.waited.numpy()) >= self.patience
