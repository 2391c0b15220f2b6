"""How well probabilities are calibrated."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from trainer.annotations import Ge
from trainer.engine.evaluation.row_metrics import predicted_classes


class CalibrationError:
    """Expected calibration error (Guo et al. 2017, "On Calibration of Modern Neural Networks").

    Examples are binned by the probability of the predicted class: ((m - 1) / bins, m / bins].
    The error is the mean over the examples of the difference between the accuracy of their bin and
    its mean probability; NaN where a probability is not finite.
    """

    label_kind = "class"
    direction: ClassVar = {"calibration_error": "min"}

    def __init__(self, *, bins: Annotated[int, Ge(1)] = 15) -> None:
        self._bins = bins
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        labels = np.asarray(y_true)
        predicted = predicted_classes(np.asarray(y_pred))
        confidence = np.max(y_pred, axis=1).astype(np.float64)
        edges = np.ceil(np.nan_to_num(confidence) * self._bins).astype(np.int64)
        bins = np.clip(edges - 1, 0, self._bins - 1)
        # Example by example: the sums, to the bit, do not depend on the sizes of the batches.
        np.add.at(self._excess, bins, confidence - (labels == predicted))
        self._count += len(labels)

    def result(self) -> dict[str, float]:
        if not self._count:
            return {"calibration_error": float("nan")}
        return {"calibration_error": float(np.abs(self._excess).sum() / self._count)}

    def reset_state(self) -> None:
        # Per bin: the sum of its probabilities minus the number of correct predictions.
        self._excess = np.zeros(self._bins)
        self._count = 0
