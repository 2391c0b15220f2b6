"""Steadfast: `python train.py`, with a task that records which examples a step takes."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.fire.peer import Recorder
from trainer.protocols import Batch, Metrics, StepContext
from trainer.tasks.classification import Classification


class Recorded(Classification):
    """Classification.

    Args:
        folder: where the records go.
    """

    def __init__(self, *, folder: str) -> None:
        super().__init__()
        self._record = Recorder(folder)

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Make one update on the global batch."""
        metrics = super().train_step(batch, step)
        self._record(tf.identity(step.index), batch["id"])
        return metrics
