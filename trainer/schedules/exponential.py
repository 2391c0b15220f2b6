"""Exponential decay."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Gt, Le
from trainer.schedules.schedule import Schedule, warmup_length


def exponential(  # noqa: PLR0913 - every option is a key of the configuration
    peak: float,
    total_steps: int,
    steps_per_epoch: float,
    *,
    factor: Annotated[float, Gt(0), Le(1)] = 0.96,
    every_epochs: Annotated[float, Gt(0)] = 1.0,
    staircase: bool = False,
    warmup_steps: Annotated[int, Ge(0)] = 0,
    warmup_epochs: Annotated[float, Ge(0)] = 0.0,
) -> Schedule:
    """Multiply by `factor` over every so many epochs after the warm-up, smoothly or in one step."""
    warmup = warmup_length(warmup_steps, warmup_epochs, steps_per_epoch)
    length = every_epochs * steps_per_epoch

    def decay(step: tf.Tensor) -> tf.Tensor:
        passed = tf.maximum(step - warmup, 0.0) / length
        return tf.pow(factor, tf.floor(passed) if staircase else passed)

    return Schedule(peak, warmup, decay)
