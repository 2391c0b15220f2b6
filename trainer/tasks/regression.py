"""Regression: one or several numbers are predicted."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import tensorflow as tf

from trainer.annotations import Gt
from trainer.protocols import Batch, PerExample, TaskParts
from trainer.tasks.supervised import Supervised


class Regression(Supervised):
    """Trains `model(features)`, outputs [B, targets], on numbers.

    Where the dataset has mean and standard deviation of each target in the training split, as a
    table does, the model predicts (target - mean) / deviation, and the loss is that of these
    numbers: targets of different units count equally. Predictions and metrics are in the units of
    the targets.

    Args:
        loss: mean over the targets of e**2 (squared), |e| (absolute), or of e**2 / 2 where
            |e| <= delta, else delta * (|e| - delta / 2) (huber; Huber 1964).
        delta: of huber, in standard deviations where the targets are normalized.
    """

    metrics = ("loss", "mae")
    direction: ClassVar = {"loss": "min", "mae": "min"}
    label_kind = "number"

    def __init__(
        self,
        *,
        loss: Literal["squared", "absolute", "huber"] = "squared",
        delta: Annotated[float, Gt(0)] = 1.0,
    ) -> None:
        super().__init__()
        self._kind = loss
        self._delta = delta
        self._means: list[float] = []
        self._deviations: list[float] = []

    def build(self, parts: TaskParts) -> None:
        super().build(parts)
        scale = parts.target_scale or [(0.0, 1.0)] * parts.num_classes
        self._means = [mean for mean, _ in scale]
        self._deviations = [deviation for _, deviation in scale]

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return `prediction` [B, targets] float32, in the targets' own unit."""
        normalized = self._normalized(batch, training=False)
        return {"prediction": normalized * self._deviations + self._means}

    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        normalized = self._normalized(batch, training=training)
        targets = tf.reshape(tf.cast(batch["label"], tf.float32), [-1, len(self._means)])
        errors = tf.abs(normalized - (targets - self._means) / self._deviations)
        mae = tf.reduce_mean(errors * self._deviations, axis=-1)
        return tf.reduce_mean(self._losses(errors), axis=-1), {"mae": mae}

    def _normalized(self, batch: Batch, *, training: bool) -> tf.Tensor:
        return self._outputs(batch, training=training)[:, : self.num_outputs]

    def _losses(self, errors: tf.Tensor) -> tf.Tensor:
        """Return the loss of absolute errors."""
        if self._kind == "absolute":
            return errors
        squares = tf.square(errors)
        if self._kind == "squared":
            return squares
        linear = self._delta * (errors - 0.5 * self._delta)
        return tf.where(errors <= self._delta, 0.5 * squares, linear)
