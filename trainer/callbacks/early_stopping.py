"""Early stopping, and the patience that ends; the state is in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import tensorflow as tf

from trainer.annotations import Ge
from trainer.config.directions import Directions
from trainer.errors import ConfigError


class Patience:
    """Counts evaluations without improvement of a metric."""

    def __init__(
        self, name: str, *, metric: str, mode: str, patience: int, min_delta: float
    ) -> None:
        self._name = name
        self.metric = metric
        self.patience = patience
        self.min_delta = min_delta
        self.directions = Directions()
        self._mode = mode
        self.best = tf.Variable(float("-inf"), dtype=tf.float64, trainable=False, name="best")
        self.waited = tf.Variable(0, dtype=tf.int64, trainable=False, name="waited")

    def is_exhausted_by(self, metrics: Mapping[str, float], *, counts: bool = True) -> bool:
        """Return whether this evaluation exhausts the patience.

        Args:
            counts: whether an evaluation without improvement counts; if not, the count is reset.

        Raises:
            ConfigError: the monitored metric is not among them.
        """
        if self.metric not in metrics:
            raise ConfigError(
                f"callbacks.{self._name}.metric ({self.metric}) is not evaluated; "
                f"choose one of {', '.join(metrics)}"
            )
        mode = self.directions.mode(self.metric, self._mode)
        assert mode is not None, "a metric that declares no direction is refused before"
        value = metrics[self.metric] if mode == "max" else -metrics[self.metric]
        improved = value > float(self.best.numpy()) + self.min_delta
        if improved:
            self.best.assign(value)
        if improved or not counts:
            self.waited.assign(0)
        else:
            self.waited.assign_add(1)
        return int(self.waited.numpy()) >= self.patience


class EarlyStopping(Patience):
    """Stops when a metric of the evaluations has not improved for `patience` evaluations."""

    def __init__(
        self,
        *,
        metric: str = "accuracy",
        mode: Literal["auto", "max", "min"] = "auto",
        patience: Annotated[int, Ge(1)] = 5,
        min_delta: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        super().__init__(
            "early_stopping", metric=metric, mode=mode, patience=patience, min_delta=min_delta
        )

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        return self.is_exhausted_by(metrics)
