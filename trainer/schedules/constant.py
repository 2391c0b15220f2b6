"""A constant learning rate."""

from __future__ import annotations

from typing import Annotated

from trainer.annotations import Ge
from trainer.schedules.schedule import Schedule, warmup_length


def constant(
    peak: float,
    total_steps: int,
    steps_per_epoch: float,
    *,
    warmup_steps: Annotated[int, Ge(0)] = 0,
    warmup_epochs: Annotated[float, Ge(0)] = 0.0,
) -> Schedule:
    """Stay at the peak."""
    return Schedule(peak, warmup_length(warmup_steps, warmup_epochs, steps_per_epoch))
