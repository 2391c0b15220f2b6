"""The base of schedules: warm-up, and adjustments by callbacks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

Rate: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from peak / warmup_steps, then `peak * decay(step)`.

    Args:
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


def warmup_length(warmup_steps: int, warmup_epochs: float, steps_per_epoch: float) -> int:
    """Return the number of steps of a warm-up that is given in steps or in epochs.

    Raises:
        ValueError: it is given in both.
    """
    if warmup_steps and warmup_epochs:
        raise ValueError(
            f"warmup_steps ({warmup_steps}) and warmup_epochs ({warmup_epochs}) are both set, at "
            "most one may be; add schedule.warmup_steps=0"
        )
    return warmup_steps or math.ceil(warmup_epochs * steps_per_epoch)


class _Derived(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A rate that is computed from that of another schedule."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return self._rate(step)


def slow_down(schedule: Rate, updates_per_step: int) -> Rate:
    """Return a schedule of updates from one of steps, each of which makes several updates."""
    if updates_per_step == 1:
        return schedule
    return _Derived(lambda step: schedule(tf.cast(step, tf.int64) // updates_per_step))


def of_steps(schedule: Rate, updates_per_step: int) -> Rate:
    """Return a schedule of steps from one of updates: the rate of each step's first update."""
    if updates_per_step == 1:
        return schedule
    return _Derived(lambda step: schedule(tf.cast(step, tf.int64) * updates_per_step))


def scale(schedule: Rate, factor: float) -> Rate:
    """Return a schedule whose rate is multiplied."""
    return schedule if factor == 1.0 else _Derived(lambda step: factor * schedule(step))


def adjust(schedule: Rate, adjustments: Sequence[Rate]) -> Rate:
    """Return a schedule whose rate is passed through further functions, in order."""

    def adjusted(step: tf.Tensor) -> tf.Tensor:
        return functools.reduce(lambda rate, change: change(rate), adjustments, schedule(step))

    return _Derived(adjusted) if adjustments else schedule
