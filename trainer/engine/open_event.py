"""The event at a step: what it has changed, until every process is known to have been through it.

The chief writes what is reported. A process that loses it at an event cannot know how far it came:
it takes the event back, and a restart reports it again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from trainer.engine.graph.state.train_state import TrainState


@dataclass(frozen=True)
class _Before:
    """What was before the event: whether more than metrics change, and what a report changes."""

    changes: bool
    sums: np.ndarray
    callbacks: list[tf.Tensor]
    reported: int


class OpenEvent:
    """The event that this process is in, or has been through before the others, if any.

    Args:
        state: what it changes.
    """

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._before: _Before | None = None

    def begin(self, reported: int, *, changes: bool) -> None:
        """Begin one.

        Args:
            reported: the last step that was reported.
            changes: whether it is more than a report of the training metrics.
        """
        callbacks = [x.read_value() for x in self._state.callback_variables()]
        self._before = _Before(changes, self._state.summary_sums.numpy(), callbacks, reported)

    def end(self) -> bool | None:
        """End it; return whether it was more than a report of metrics; None: there was none."""
        before, self._before = self._before, None
        return None if before is None else before.changes

    def take_back(self) -> bool:
        """Take back what it has changed; return whether that is possible."""
        before = self._before
        if before is None:
            return True
        self._state.summary_sums.assign(before.sums)
        for variable, value in zip(self._state.callback_variables(), before.callbacks, strict=True):
            variable.assign(value)
        self._state.last_reported_step.assign(before.reported)
        return not before.changes
