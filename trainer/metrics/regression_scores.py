"""Errors of predicted numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from trainer.annotations import Ge
from trainer.text import named_values


class RegressionScores:
    """Root mean squared error, `rmse`, and coefficient of determination, `r2`, of a whole split.

    With several targets each is the mean over the targets, and `rmse/<target>`, `mae/<target>` and
    `r2/<target>` are those of one. r2 is 1 - squared errors / squared deviations from the mean of
    the split's targets (Wright 1921); of a target that is always the same it is 1.0 if all
    predictions are right, else 0.0.
    """

    label_kind = "number"
    direction: ClassVar = {"rmse": "min", "r2": "max"}
    _count: int
    # Of each target: sums of squared and absolute errors, the mean, and the sum of squared
    # deviations from it, [T].
    _squared: np.ndarray
    _absolute: np.ndarray
    _mean: np.ndarray
    _deviations: np.ndarray

    def __init__(self, *, most_targets: Annotated[int, Ge(0)] = 20) -> None:
        self.class_names: Sequence[str] = ()
        self._most_targets = most_targets
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        targets = np.asarray(y_true, np.float64)
        errors = np.asarray(y_pred, np.float64) - targets
        added = len(targets)
        ones = np.ones(added)
        self._squared = self._squared + ones @ errors**2
        self._absolute = self._absolute + ones @ np.abs(errors)
        # Sums of blocks are merged around their means (Chan et al. 1979): no digits are lost.
        total = self._count + added
        mean = ones @ targets / added
        shift = mean - self._mean
        within = ones @ (targets - mean) ** 2
        self._deviations = self._deviations + within + shift**2 * self._count * added / total
        self._mean = self._mean + shift * added / total
        self._count = total

    def result(self) -> dict[str, float]:
        if not self._count:
            return {"rmse": float("nan"), "r2": float("nan")}
        rmse = np.sqrt(self._squared / self._count)
        constant = np.where(self._squared == 0, 1.0, 0.0)
        varies = self._deviations > 0
        unexplained = self._squared / np.where(varies, self._deviations, 1.0)
        r2 = np.where(varies, 1.0 - unexplained, constant)
        values = {"rmse": rmse, "mae": self._absolute / self._count, "r2": r2}
        results = {name: float(values[name].mean()) for name in ("rmse", "r2")}
        if 1 < len(rmse) <= self._most_targets:
            for name, each in values.items():
                results |= named_values(name, each.tolist(), self.class_names)
        return results

    def reset_state(self) -> None:
        self._count = 0
        self._squared = self._absolute = self._mean = self._deviations = np.zeros(1)
