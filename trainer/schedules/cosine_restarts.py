"""Cosine decay with warm restarts."""

from __future__ import annotations

import math
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Gt, Le
from trainer.schedules.schedule import Schedule, warmup_length


def cosine_restarts(  # noqa: PLR0913 - every option is a key of the configuration
    peak: float,
    total_steps: int,
    steps_per_epoch: float,
    *,
    first_epochs: Annotated[float, Gt(0)] = 10.0,
    length_factor: Annotated[float, Ge(1)] = 2.0,
    final_fraction: Annotated[float, Ge(0), Le(1)] = 0.0,
    warmup_steps: Annotated[int, Ge(0)] = 0,
    warmup_epochs: Annotated[float, Ge(0)] = 0.0,
) -> Schedule:
    """Decay along half a cosine, then start again at the peak, each time for longer.

    SGDR, Loshchilov and Hutter 2017.
    """
    warmup = warmup_length(warmup_steps, warmup_epochs, steps_per_epoch)
    first = first_epochs * steps_per_epoch
    # Where each period begins, up to the end of training; both are known here.
    starts, length = [0.0], first
    while starts[-1] + length < total_steps:
        starts.append(starts[-1] + length)
        length *= length_factor
    lengths = [first * length_factor**number for number in range(len(starts))]

    def decay(step: tf.Tensor) -> tf.Tensor:
        passed = tf.maximum(step - warmup, 0.0)
        period = tf.reduce_sum(tf.cast(passed >= tf.constant(starts), tf.int32)) - 1
        progress = (passed - tf.gather(starts, period)) / tf.gather(lengths, period)
        progress = tf.minimum(progress, 1.0)
        return final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + tf.cos(math.pi * progress))

    return Schedule(peak, warmup, decay)
