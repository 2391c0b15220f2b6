"""Precision and recall of each class, and their averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from trainer.annotations import Ge
from trainer.engine.evaluation.row_metrics import predicted_classes
from trainer.text import named_values


class PerClass:
    """Precision and recall of each class, and their averages over classes.

    The values are named `precision/<class>` and `recall/<class>`, the averages `precision` and
    `recall`. Precision is the fraction of the predictions of a class that are correct, recall the
    fraction of its examples that are found. Without any, they are 0.0. The averages are macro
    averages over the classes that occur among the labels or the predictions.
    """

    label_kind = "class"
    direction: ClassVar = {"precision": "max", "recall": "max"}

    def __init__(self, *, most_classes: Annotated[int, Ge(0)] = 20) -> None:
        self.class_names: Sequence[str] = ()
        self._most_classes = most_classes
        # [3, C]: for each class the correct predictions, the predictions, and the labels.
        self._counts: np.ndarray = np.zeros((3, 0))

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        labels = np.asarray(y_true)
        predicted = predicted_classes(np.asarray(y_pred))
        rows = (predicted[labels == predicted], predicted[predicted >= 0], labels)
        size = y_pred.shape[1]
        counts = np.stack([np.bincount(classes, minlength=size) for classes in rows]).astype(float)
        self._counts = counts + (self._counts if self._counts.size else 0.0)

    def result(self) -> dict[str, float]:
        correct, predicted, labels = self._counts
        occurs = predicted + labels > 0
        results: dict[str, float] = {}
        for name, count in (("precision", predicted), ("recall", labels)):
            values = np.divide(correct, count, out=np.zeros_like(correct), where=count > 0)
            results[name] = float(values[occurs].mean()) if occurs.any() else float("nan")
            if len(values) <= self._most_classes:
                results |= named_values(name, values.tolist(), self.class_names)
        return results

    def reset_state(self) -> None:
        self._counts = np.zeros((3, 0))
