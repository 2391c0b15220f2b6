"""Supervised classification: one model, one optimizer, cross-entropy and accuracy."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts


class Classification:
    """Trains `model(features)`, logits of at least [B, num_classes], on labels.

    A label is the number of a class, [B] integers, or the share of each class, [B, num_classes]
    float32, as mixup makes it; then accuracy is against the class of the largest share.

    Args:
        label_smoothing: share of the target that is spread evenly over all classes (Szegedy et al.
            2016). The loss that an evaluation reports is without it.
    """

    metrics = ("loss", "accuracy")

    def __init__(self, *, label_smoothing: Annotated[float, ">= 0, < 1"] = 0.0) -> None:
        self.label_smoothing = label_smoothing
        self._num_classes: int | None = None
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        """Create the model and its optimizer."""
        self._num_classes = parts.num_classes
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
        """Return the probability of each class, `probabilities` [B, num_classes] float32.

        A model with more outputs than there are classes has probabilities for these too; they are
        left out.
        """
        probabilities = tf.nn.softmax(self._logits(batch, training=False))
        return {"probabilities": probabilities[:, : self._num_classes]}

    def _train_loss(self, batch: Batch) -> PerExample:
        return self._loss(batch, training=True, smoothing=self.label_smoothing)

    def _loss(self, batch: Batch, *, training: bool, smoothing: float) -> PerExample:
        logits = self._logits(batch, training=training)
        losses, labels = _cross_entropy(batch["label"], logits)
        if smoothing:
            uniform = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
            losses = (1.0 - smoothing) * losses + smoothing * uniform
        return losses, {"accuracy": tf.cast(tf.argmax(logits, axis=-1) == labels, tf.float32)}

    def _logits(self, batch: Batch, *, training: bool) -> tf.Tensor:
        return tf.cast(self.models["model"](batch["features"], training=training), tf.float32)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the loss of each example, [B], and the number of its (largest) class, [B] int64."""
    if labels.shape.rank == 1:
        numbers = tf.cast(labels, tf.int64)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(numbers, logits), numbers
    # A model may have more outputs than there are classes.
    shares = tf.pad(labels, [[0, 0], [0, logits.shape[-1] - labels.shape[-1]]])
    losses = tf.nn.softmax_cross_entropy_with_logits(shares, logits)
    return losses, tf.argmax(shares, axis=-1)
