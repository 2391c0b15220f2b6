"""Decay at given steps or epochs."""

from __future__ import annotations

import math
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Gt, Le
from trainer.schedules.schedule import Schedule, warmup_length


def step(  # noqa: PLR0913 - every option is a key of the configuration
    peak: float,
    total_steps: int,
    steps_per_epoch: float,
    *,
    boundaries: list[int],
    boundary_epochs: list[Annotated[float, Gt(0)]] = [],  # noqa: B006 - never changed
    factor: Annotated[float, Gt(0), Le(1)] = 0.1,
    warmup_steps: Annotated[int, Ge(0)] = 0,
    warmup_epochs: Annotated[float, Ge(0)] = 0.0,
) -> Schedule:
    """Multiply by `factor` at each step in `boundaries`, and after each of `boundary_epochs`."""
    warmup = warmup_length(warmup_steps, warmup_epochs, steps_per_epoch)
    steps = [*boundaries, *(math.ceil(epochs * steps_per_epoch) for epochs in boundary_epochs)]

    def decay(step: tf.Tensor) -> tf.Tensor:
        passed = tf.reduce_sum(
            tf.cast(step >= tf.constant(steps, tf.float32, shape=[len(steps)]), tf.float32)
        )
        return tf.pow(factor, passed)

    return Schedule(peak, warmup, decay)
