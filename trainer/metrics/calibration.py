"""How far the probabilities can be believed."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np


class CalibrationError:
    """Expected calibration error (Guo et al. 2017, "On Calibration of Modern Neural Networks").

    Examples are put into bins by the probability of the class that they are taken for: ((m - 1) / bins, m / bins]. The error is the
    mean over the examples of how far their bin's accuracy is from its mean probability.

    Args:
        bins: how many bins of equal width.
    """

    def __init__(self, *, bins: Annotated[int, ">= 1"] = 15) -> None:
        self._bins = bins
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes more examples: labels, [B], and probabilities, [B, C]."""
        labels, predicted = np.asarray(y_true), np.argmax(y_pred, axis=1)
        confidence = np.max(y_pred, axis=1).astype(np.float64)
        weights = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        found = np.clip(np.ceil(confidence * self._bins).astype(np.int64) - 1, 0, self._bins - 1)
        # Example by example: the sums, hence every bit, do not depend on how the examples were handed over.
        np.add.at(self._excess, found, weights * (confidence - (labels == predicted)))
        self._weight += float(weights.sum())

    def result(self) -> dict[str, float]:
        """Gives the error as `calibration_error`; NaN when there has been no example."""
        return {"calibration_error": float(np.abs(self._excess).sum() / self._weight) if self._weight else float("nan")}

    def reset_state(self) -> None:
        """Forgets all examples."""
        self._excess, self._weight = np.zeros(self._bins), 0.0  # of each bin: its probabilities minus how many were right
