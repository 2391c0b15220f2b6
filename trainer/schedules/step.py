"""Decay at given steps."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.schedules.base import Schedule


def step(
    peak: float,
    total_steps: int,
    *,
    boundaries: list[int],
    factor: Annotated[float, "> 0, <= 1"] = 0.1,
    warmup_steps: Annotated[int, ">= 0"] = 0,
) -> Schedule:
    """Multiply by `factor` at each step in `boundaries`."""

    def decay(step: tf.Tensor) -> tf.Tensor:
        passed = tf.reduce_sum(
            tf.cast(
                step >= tf.constant(boundaries, tf.float32, shape=[len(boundaries)]), tf.float32
            )
        )
        return tf.pow(factor, passed)

    return Schedule(peak, warmup_steps, decay)
