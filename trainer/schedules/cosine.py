"""Cosine decay."""

from __future__ import annotations

import math
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Le
from trainer.schedules.schedule import Schedule, warmup_length


def cosine(
    peak: float,
    total_steps: int,
    steps_per_epoch: float,
    *,
    warmup_steps: Annotated[int, Ge(0)] = 0,
    warmup_epochs: Annotated[float, Ge(0)] = 0.0,
    final_fraction: Annotated[float, Ge(0), Le(1)] = 0.0,
) -> Schedule:
    """Decay along half a cosine from the peak to `final_fraction` of it, after the warm-up.

    Loshchilov and Hutter 2017, without restarts.
    """
    warmup = warmup_length(warmup_steps, warmup_epochs, steps_per_epoch)
    length = max(1, total_steps - warmup)

    def decay(step: tf.Tensor) -> tf.Tensor:
        progress = tf.clip_by_value((step - warmup) / length, 0.0, 1.0)
        return final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + tf.cos(math.pi * progress))

    return Schedule(peak, warmup, decay)
