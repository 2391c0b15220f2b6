"""Learning rate over time. A schedule is a function of (peak, total_steps, its options) that returns a Keras schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import tensorflow as tf

Rate: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from peak / warmup_steps, then `after(step)`, which gives a fraction of the peak."""

    def __init__(self, peak: float, warmup_steps: int, after: Callable[[tf.Tensor], tf.Tensor] | None = None) -> None:
        self.peak, self.warmup_steps, self.after = peak, warmup_steps, after

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Gives the learning rate, a float32 scalar, of update number `step` (scalar, counted from 0)."""
        step = tf.cast(step, tf.float32)
        fraction = tf.constant(1.0) if self.after is None else self.after(step)
        if self.warmup_steps:
            fraction = tf.where(step < self.warmup_steps, (step + 1) / self.warmup_steps, fraction)
        return self.peak * fraction

    def get_config(self) -> dict[str, float]:
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


class _Adjusted(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, schedule: Rate, adjustments: Sequence[Rate]) -> None:
        self._schedule, self._adjustments = schedule, adjustments

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        rate = self._schedule(step)
        for adjust in self._adjustments:
            rate = adjust(rate)
        return rate


def adjusted(schedule: Rate, adjustments: Sequence[Rate]) -> Rate:
    """Gives a schedule whose rate goes through further functions, one after the other: those of callbacks."""
    return _Adjusted(schedule, adjustments) if adjustments else schedule


def constant(peak: float, total_steps: int, *, warmup_steps: Annotated[int, ">= 0"] = 0) -> Schedule:
    """Stays at the peak."""
    return Schedule(peak, warmup_steps)


def cosine(
    peak: float, total_steps: int, *, warmup_steps: Annotated[int, ">= 0"] = 0, final_fraction: Annotated[float, ">= 0, <= 1"] = 0.0
) -> Schedule:
    """Falls along half a cosine from the peak to final_fraction of it, after the warm-up (Loshchilov and Hutter 2017, no restarts)."""
    length = max(1, total_steps - warmup_steps)

    def after(step: tf.Tensor) -> tf.Tensor:
        progress = tf.clip_by_value((step - warmup_steps) / length, 0.0, 1.0)
        return final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + tf.cos(math.pi * progress))

    return Schedule(peak, warmup_steps, after)


def step(
    peak: float,
    total_steps: int,
    *,
    boundaries: list[int],
    factor: Annotated[float, "> 0, <= 1"] = 0.1,
    warmup_steps: Annotated[int, ">= 0"] = 0,
) -> Schedule:
    """Is multiplied by `factor` at each step in `boundaries`."""

    def after(step: tf.Tensor) -> tf.Tensor:
        passed = tf.reduce_sum(tf.cast(step >= tf.constant(boundaries, tf.float32, shape=[len(boundaries)]), tf.float32))
        return tf.pow(factor, passed)

    return Schedule(peak, warmup_steps, after)
