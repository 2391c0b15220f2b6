"""Supervised classification: one model, one optimizer, cross-entropy and accuracy."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts


class Classification:
    """Trains `model(features)`, logits of [B, num_classes], against integer labels of [B].

    Args:
        label_smoothing: share of the target that is spread evenly over all classes (Szegedy et al.
            2016). The loss that an evaluation reports is without it.
    """

    metrics = ("loss", "accuracy")

    def __init__(self, *, label_smoothing: Annotated[float, ">= 0, < 1"] = 0.0) -> None:
        self.label_smoothing = label_smoothing
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        """Create the model and its optimizer."""
        self.models = {"model": parts.model()}
        self.optimizers = {"model": parts.optimizer()}

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Make one update on the global batch."""
        return step.minimize(
            self._train_loss, batch, self.models["model"], self.optimizers["model"]
        )

    def eval_step(self, batch: Batch) -> PerExample:
        """Return loss and accuracy of each example, [B]."""
        return self._loss(batch, training=False, smoothing=0.0)

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the probability of each class, `probabilities` [B, num_classes] float32."""
        return {"probabilities": tf.nn.softmax(self._logits(batch, training=False))}

    def _train_loss(self, batch: Batch) -> PerExample:
        return self._loss(batch, training=True, smoothing=self.label_smoothing)

    def _loss(self, batch: Batch, *, training: bool, smoothing: float) -> PerExample:
        labels = tf.cast(batch["label"], tf.int64)
        logits = self._logits(batch, training=training)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if smoothing:
            uniform = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
            losses = (1.0 - smoothing) * losses + smoothing * uniform
        return losses, {"accuracy": tf.cast(tf.argmax(logits, axis=-1) == labels, tf.float32)}

    def _logits(self, batch: Batch, *, training: bool) -> tf.Tensor:
        return tf.cast(self.models["model"](batch["features"], training=training), tf.float32)
