"""The base of schedules: warm-up, and adjustments by callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

Rate: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from peak / warmup_steps, then `peak * decay(step)`.

    Args:
        peak: the largest learning rate.
        warmup_steps: number of steps of the warm-up.
        decay: returns a fraction of the peak, a float32 scalar; None: 1.0.
    """

    def __init__(
        self, peak: float, warmup_steps: int, decay: Callable[[tf.Tensor], tf.Tensor] | None = None
    ) -> None:
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.decay = decay

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the learning rate, a float32 scalar, of update `step` (scalar, from 0)."""
        step = tf.cast(step, tf.float32)
        fraction = tf.constant(1.0) if self.decay is None else self.decay(step)
        if self.warmup_steps:
            fraction = tf.where(step < self.warmup_steps, (step + 1) / self.warmup_steps, fraction)
        return self.peak * fraction

    def get_config(self) -> dict[str, float]:
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


class _AdjustedSchedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, schedule: Rate, adjustments: Sequence[Rate]) -> None:
        self._schedule = schedule
        self._adjustments = adjustments

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        rate = self._schedule(step)
        for adjust in self._adjustments:
            rate = adjust(rate)
        return rate


def adjust(schedule: Rate, adjustments: Sequence[Rate]) -> Rate:
    """Return a schedule whose rate is passed through further functions, in order."""
    return _AdjustedSchedule(schedule, adjustments) if adjustments else schedule
