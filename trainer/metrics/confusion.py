"""The confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.engine.evaluation.row_metrics import predicted_classes
from trainer.summaries import figures


class ConfusionMatrix:
    """Counts the examples by label (row) and prediction (column): a table and a figure, no number.

    An example whose probabilities are not finite is in no column.

    Attributes:
        matrix: the counts, [C, C]; [0, 0] before the first example.
    """

    label_kind = "class"

    def __init__(self) -> None:
        self.class_names: Sequence[str] = ()
        self.matrix: np.ndarray = np.zeros((0, 0), int)

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        size = y_pred.shape[1]
        predicted = predicted_classes(np.asarray(y_pred))
        cells = np.asarray(y_true) * size + predicted
        counts = np.bincount(cells[predicted >= 0], minlength=size * size).reshape(size, size)
        self.matrix = counts + (self.matrix if self.matrix.size else 0)

    def result(self) -> dict[str, float]:
        return {}

    def reset_state(self) -> None:
        self.matrix = np.zeros((0, 0), int)

    def figure(self) -> np.ndarray:
        return figures.confusion_matrix(self.matrix, self._names())

    def table(self) -> dict[str, Any]:
        """Return the names of the classes and the counts, for `confusion.json`."""
        return {"classes": self._names(), "matrix": self.matrix.tolist()}

    def _names(self) -> list[str]:
        return list(self.class_names) or [str(number) for number in range(len(self.matrix))]
