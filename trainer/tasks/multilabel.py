"""Multilabel classification: an example has any number of labels."""

from __future__ import annotations

from typing import Annotated, ClassVar

import tensorflow as tf

from trainer.annotations import Gt, Lt
from trainer.errors import ConfigError
from trainer.protocols import Batch, PerExample, TaskParts
from trainer.tasks.supervised import Supervised


class Multilabel(Supervised):
    """Trains `model(features)`, logits [B, labels], on labels of 0 and 1.

    The loss is the mean over the labels of the cross-entropy; the accuracy is the fraction of the
    examples of which all labels are predicted right. An evaluation's loss is without weights.
    """

    metrics = ("loss", "accuracy")
    direction: ClassVar = {"loss": "min", "accuracy": "max"}
    primary_metric = "accuracy"
    label_kind = "multilabel"

    def __init__(
        self,
        *,
        positive_weights: list[Annotated[float, Gt(0)]] = [],  # noqa: B006 - never changed
        threshold: Annotated[float, Gt(0), Lt(1)] = 0.5,
    ) -> None:
        super().__init__()
        self.threshold = threshold
        self._weights = positive_weights

    def build(self, parts: TaskParts) -> None:
        if self._weights and len(self._weights) != parts.num_classes:
            raise ConfigError(
                f"task.positive_weights ({self._weights}) must have one number for each of the "
                f"{parts.num_classes} labels; it has {len(self._weights)}"
            )
        super().build(parts)

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return `probabilities` [B, labels] float32, and `predicted` [B, labels] int64, 0 or 1."""
        probabilities = tf.sigmoid(self._logits(batch, training=False))
        return {"probabilities": probabilities, "predicted": self._predicted(probabilities)}

    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        logits = self._logits(batch, training=training)
        labels = tf.cast(batch["label"], tf.float32)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        if training and self._weights:
            losses *= 1.0 + labels * (tf.constant(self._weights) - 1.0)
        right = tf.equal(self._predicted(tf.sigmoid(logits)), tf.cast(batch["label"], tf.int64))
        right &= tf.math.is_finite(losses)
        accuracy = tf.cast(tf.reduce_all(right, axis=-1), tf.float32)
        return tf.reduce_mean(losses, axis=-1), {"accuracy": accuracy}

    def _logits(self, batch: Batch, *, training: bool) -> tf.Tensor:
        return self._outputs(batch, training=training)[:, : self.num_outputs]

    def _predicted(self, probabilities: tf.Tensor) -> tf.Tensor:
        return tf.cast(probabilities >= self.threshold, tf.int64)
