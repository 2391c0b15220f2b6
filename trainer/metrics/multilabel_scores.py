"""How well several labels of an example are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from trainer.annotations import Ge
from trainer.text import named_values


class MultilabelScores:
    """F1 scores and average precision of a whole split.

    `f1_micro` is that of all labels together, `f1_macro` the mean over the labels that occur among
    those of the examples or the predictions. `average_precision` is the mean over the labels that
    some example has; of one label it is the sum over all thresholds of the precision there times
    what recall rises by (Zhu 2004). `f1/<label>` and `average_precision/<label>` are those of one
    label, 0.0 where it does not occur. A probability that is NaN predicts no label, and makes the
    average precision NaN. All probabilities of the split are held in memory.

    Attributes:
        threshold: probability from which a label is predicted; that of the task, if it has one.
    """

    label_kind = "multilabel"
    direction: ClassVar = {
        "f1_micro": "max", "f1_macro": "max", "average_precision": "max", "f1": "max"
    }  # fmt: skip

    def __init__(self, *, most_labels: Annotated[int, Ge(0)] = 20) -> None:
        self.class_names: Sequence[str] = ()
        self.threshold = 0.5
        self._most_labels = most_labels
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        self._blocks.append((np.asarray(y_true, bool), np.asarray(y_pred)))

    def result(self) -> dict[str, float]:
        if not self._blocks:
            return dict.fromkeys(("f1_micro", "f1_macro", "average_precision"), float("nan"))
        columns = zip(*self._blocks, strict=True)
        labels, probabilities = (np.concatenate(column) for column in columns)
        # As the task compares: in float32.
        predicted = probabilities >= np.float32(self.threshold)
        right = 2.0 * (labels & predicted).sum(axis=0)
        counts = labels.sum(axis=0) + predicted.sum(axis=0)
        f1 = np.divide(right, counts, out=np.zeros_like(right), where=counts > 0)
        precision = np.array([*map(_average_precision, labels.T, probabilities.T)])
        results = {
            "f1_micro": float(right.sum() / counts.sum()) if counts.any() else float("nan"),
            "f1_macro": _mean(f1[counts > 0]),
            "average_precision": _mean(precision[labels.any(axis=0)]),
        }
        if len(f1) <= self._most_labels:
            results |= named_values("f1", f1.tolist(), self.class_names)
            results |= named_values("average_precision", precision.tolist(), self.class_names)
        return results

    def reset_state(self) -> None:
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []


def _average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the average precision of a label, [N] bool; 0.0 if none has it, NaN of a score NaN."""
    if np.isnan(scores).any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    if not hits[-1]:
        return 0.0
    # Examples of one score are at one threshold: only the last of them counts.
    last = np.append(np.diff(scores[order]) != 0, True)
    precision = hits[last] / (np.flatnonzero(last) + 1)
    return float(np.sum(np.diff(hits[last], prepend=0) * precision) / hits[-1])


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
