"""Which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class ConfusionMatrix:
    """Counts how often each class, the row, was taken for which, the column. It gives a table and a picture, and no number.

    Attributes:
        class_names: names of the classes; without any they are numbered.
        matrix: the counts, [C, C] float64; [0, 0] before the first example.
    """

    def __init__(self) -> None:
        self.class_names: Sequence[str] = ()
        self.matrix: np.ndarray = np.zeros((0, 0))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes more examples: labels, [B], and probabilities, [B, C]."""
        size = y_pred.shape[1]
        cells = np.asarray(y_true) * size + np.argmax(y_pred, axis=1)
        counts = np.bincount(cells, sample_weight, minlength=size * size).reshape(size, size)
        self.matrix = counts + (self.matrix if self.matrix.size else 0.0)

    def result(self) -> dict[str, float]:
        """Gives no number."""
        return {}

    def reset_state(self) -> None:
        """Forgets all examples."""
        self.matrix = np.zeros((0, 0))

    def names(self) -> list[str]:
        """Gives a name for each class."""
        return list(self.class_names) or [str(number) for number in range(len(self.matrix))]
