"""One cycle: up to the peak and down again, far below the start."""

from __future__ import annotations

import math
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Gt, Le, Lt
from trainer.schedules.schedule import Schedule


def one_cycle(
    peak: float,
    total_steps: int,
    steps_per_epoch: float,
    *,
    rise: Annotated[float, Gt(0), Lt(1)] = 0.3,
    initial_fraction: Annotated[float, Gt(0), Le(1)] = 0.04,
    final_fraction: Annotated[float, Ge(0), Le(1)] = 0.0,
) -> Schedule:
    """Rise to the peak over a fraction of the steps, then fall, each along half a cosine.

    Smith and Topin 2019.
    """
    top = max(1.0, rise * total_steps)
    rest = max(1.0, total_steps - top)

    def decay(step: tf.Tensor) -> tf.Tensor:
        up = _between(initial_fraction, 1.0, tf.minimum(step / top, 1.0))
        down = _between(1.0, final_fraction, tf.clip_by_value((step - top) / rest, 0.0, 1.0))
        return tf.where(step < top, up, down)

    return Schedule(peak, 0, decay)


def _between(start: float, end: float, progress: tf.Tensor) -> tf.Tensor:
    return end + (start - end) * 0.5 * (1.0 + tf.cos(math.pi * progress))
