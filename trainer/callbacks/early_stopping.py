"""Early stopping, with its state in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from trainer.annotations import Ge
from trainer.callbacks.patience import Patience


class EarlyStopping(Patience):
    """Stops when a metric of the evaluations has not improved for `patience` evaluations.

    Args:
        metric: the metric that is monitored.
        mode: whether a larger (max) or a smaller (min) value is better; auto: as the metric
            declares.
        patience: evaluations without improvement after which training stops.
        min_delta: the least change that counts as an improvement.
    """

    def __init__(
        self,
        *,
        metric: str = "accuracy",
        mode: Literal["auto", "max", "min"] = "auto",
        patience: Annotated[int, Ge(1)] = 5,
        min_delta: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        super().__init__(
            "early_stopping", metric=metric, mode=mode, patience=patience, min_delta=min_delta
        )

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Return whether the metric has not improved for `patience` evaluations."""
        return self.is_exhausted_by(metrics)
