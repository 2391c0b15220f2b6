"""User-defined metrics, found by their dotted path."""

from __future__ import annotations

from typing import Any

import numpy as np


class Margin:
    """How much more probable the label is than the likeliest other class, on average."""

    def __init__(self, *, called: str | None = None) -> None:
        self.called = called
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        others = np.where(np.eye(y_pred.shape[1], dtype=bool)[y_true], -1.0, y_pred)
        self._sum += float(np.sum(y_pred[np.arange(len(y_true)), y_true] - others.max(axis=1)))
        self._count += len(y_true)

    def result(self) -> Any:
        value = self._sum / self._count
        return {self.called: value} if self.called else value

    def reset_state(self) -> None:
        self._sum, self._count = 0.0, 0
