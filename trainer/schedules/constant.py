"""A constant learning rate."""

from __future__ import annotations

from typing import Annotated

from trainer.schedules.base import Schedule


def constant(
    peak: float, total_steps: int, *, warmup_steps: Annotated[int, ">= 0"] = 0
) -> Schedule:
    """Stay at the peak."""
    return Schedule(peak, warmup_steps)
