"""Decay by the inverse square root of the step."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge
from trainer.schedules.schedule import Schedule, warmup_length


def inverse_sqrt(
    peak: float,
    total_steps: int,
    steps_per_epoch: float,
    *,
    warmup_steps: Annotated[int, Ge(0)] = 0,
    warmup_epochs: Annotated[float, Ge(0)] = 0.0,
) -> Schedule:
    """Decay as sqrt(warm-up / step) after the warm-up (Vaswani et al. 2017).

    It does not depend on the length of the training.
    """
    warmup = warmup_length(warmup_steps, warmup_epochs, steps_per_epoch)
    start = float(max(1, warmup))

    def decay(step: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(start / tf.maximum(step + 1.0, start))

    return Schedule(peak, warmup, decay)
