"""How often the label is among the most probable classes."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from trainer.annotations import Ge


class TopK:
    """The fraction of the examples whose label is among the k most probable classes: `top_<k>`.

    A class is among them if fewer than k classes are more probable; none is where a probability is
    not finite.
    """

    label_kind = "class"
    direction = "max"

    def __init__(self, *, k: Annotated[int, Ge(1)] = 5) -> None:
        self._k = k
        self.names = (f"top_{k}",)
        self.reset_state()

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        labels = np.asarray(y_true)
        probabilities = np.asarray(y_pred)
        own = np.take_along_axis(probabilities, labels[:, None], axis=1)
        hits = (probabilities > own).sum(axis=1) < self._k
        hits &= np.isfinite(probabilities).all(axis=1)
        self._found += int(hits.sum())
        self._count += len(labels)

    def result(self) -> dict[str, float]:
        share = self._found / self._count if self._count else float("nan")
        return {f"top_{self._k}": share}

    def reset_state(self) -> None:
        self._found = 0
        self._count = 0
