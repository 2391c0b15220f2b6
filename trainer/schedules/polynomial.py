"""Polynomial decay, of which linear decay is the first power."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Gt, Le
from trainer.schedules.schedule import Schedule, warmup_length


def polynomial(
    peak: float,
    total_steps: int,
    steps_per_epoch: float,
    *,
    power: Annotated[float, Gt(0)] = 1.0,
    final_fraction: Annotated[float, Ge(0), Le(1)] = 0.0,
    warmup_steps: Annotated[int, Ge(0)] = 0,
    warmup_epochs: Annotated[float, Ge(0)] = 0.0,
) -> Schedule:
    """Decay as (1 - progress) ** power from the peak to `final_fraction` of it."""
    warmup = warmup_length(warmup_steps, warmup_epochs, steps_per_epoch)
    length = max(1, total_steps - warmup)

    def decay(step: tf.Tensor) -> tf.Tensor:
        progress = tf.clip_by_value((step - warmup) / length, 0.0, 1.0)
        return final_fraction + (1.0 - final_fraction) * tf.pow(1.0 - progress, power)

    return Schedule(peak, warmup, decay)
