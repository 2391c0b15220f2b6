"""Precision and recall of each class, and their averages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np


class PerClass:
    """Precision and recall, as `precision/<class>` and `recall/<class>`, and the averages over classes, `precision` and `recall`.

    Precision is how many of the examples that were taken for a class are of it, recall how many of the examples of a class were
    taken for it. Where there are none, either is 0.0. The averages are plain means (macro averages) over the classes that occur,
    among the labels or among the predictions.

    Attributes:
        class_names: names of the classes; without any they are numbered.

    Args:
        most_classes: with more classes than these only the averages are given.
    """

    def __init__(self, *, most_classes: Annotated[int, ">= 0"] = 20) -> None:
        self.class_names: Sequence[str] = ()
        self._most_classes = most_classes
        self._counts: np.ndarray = np.zeros((3, 0))  # of each class: taken for it rightly, taken for it, of it

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes more examples: labels, [B], and probabilities, [B, C]."""
        labels, predicted = np.asarray(y_true), np.argmax(y_pred, axis=1)
        weights = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        right = labels == predicted
        rows = [(predicted[right], weights[right]), (predicted, weights), (labels, weights)]
        counts = np.stack([np.bincount(of, by, minlength=y_pred.shape[1]) for of, by in rows])
        self._counts = counts + (self._counts if self._counts.size else 0.0)

    def result(self) -> dict[str, float]:
        """Gives the values by name; NaN for the averages when there has been no example."""
        right, predicted, labels = self._counts
        occurs = predicted + labels > 0
        found: dict[str, float] = {}
        for name, count in (("precision", predicted), ("recall", labels)):
            values = np.divide(right, count, out=np.zeros_like(right), where=count > 0)
            found[name] = float(values[occurs].mean()) if occurs.any() else float("nan")
            if len(values) <= self._most_classes:
                found |= {f"{name}/{key}": float(value) for key, value in zip(self._keys(len(values)), values, strict=True)}
        return found

    def reset_state(self) -> None:
        """Forgets all examples."""
        self._counts = np.zeros((3, 0))

    def _keys(self, num_classes: int) -> list[str]:
        """Gives the classes' names as the command line can take them; numbers if that made two of them the same."""
        names = [re.sub(r"[^\w.-]+", "_", name) for name in self.class_names]
        return names if len(set(names)) == num_classes else [str(number) for number in range(num_classes)]
