"""What those who wait for a metric to improve have in common; its memory is in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from trainer.errors import ConfigError


class Patience:
    """Counts evaluations without improvement of a metric of the test split.

    Attributes:
        best: the best value so far, negated where smaller is better, float64.
        waited: evaluations since then, int64.

    Args:
        name: the callback's, for messages.
        metric: the metric that is watched.
        mode: whether larger (max) or smaller (min) is better.
        patience: how many evaluations without improvement are enough.
        min_delta: by how much the metric must change to count as better.
    """

    def __init__(self, name: str, *, metric: str, mode: str, patience: int, min_delta: float) -> None:
        self._name, self.metric, self.patience, self.min_delta = name, metric, patience, min_delta
        self._sign = 1.0 if mode == "max" else -1.0
        self.best = tf.Variable(float("-inf"), dtype=tf.float64, trainable=False, name="best")
        self.waited = tf.Variable(0, dtype=tf.int64, trainable=False, name="waited")

    def is_exhausted_by(self, metrics: Mapping[str, float], *, counts: bool = True) -> bool:
        """Takes an evaluation; says whether it is one too many without improvement.

        Args:
            metrics: its metrics.
            counts: whether it counts as one without improvement if it is one; if not, counting starts anew.
        """
        if self.metric not in metrics:
            raise ConfigError(f"callbacks.{self._name}.metric ({self.metric}) is not evaluated; choose one of {', '.join(metrics)}")
        value = self._sign * metrics[self.metric]
        improved = value > float(self.best.numpy()) + self.min_delta
        if improved:
            self.best.assign(value)
        if improved or not counts:
            self.waited.assign(0)
        else:
            self.waited.assign_add(1)
        return int(self.waited.numpy()) >= self.patience
