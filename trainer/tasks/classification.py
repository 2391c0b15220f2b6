"""Supervised classification: one model, one optimizer, cross-entropy and accuracy."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
import tensorflow as tf

from trainer.annotations import Ge, Lt
from trainer.errors import ConfigError
from trainer.protocols import Batch, PerExample, TaskParts
from trainer.tasks.supervised import Supervised


class Classification(Supervised):
    """Trains `model(features)`, logits [B, num_classes], on labels.

    A label is the number of a class, [B] integers, or the fraction of each class, [B, num_classes]
    float32, as mixup makes it; then accuracy is against the class of the largest share.

    Args:
        label_smoothing: fraction of the target that is spread over all classes (Szegedy et al.
            2016). The loss that an evaluation reports is without it.
        class_weights: by how much the loss of an example of each class counts, also in training
            alone; balanced: examples / (classes * examples of the class), so that all classes count
            equally (King and Zeng 2001); []: 1 each.
        focal_gamma: power of 1 - p by which the loss of an example is multiplied in training, where
            p is the probability of its class: so those that are right already count less (Lin et
            al. 2017). 0: all count equally.
    """

    metrics = ("loss", "accuracy")
    direction: ClassVar = {"loss": "min", "accuracy": "max"}
    primary_metric = "accuracy"
    label_kind = "class"

    def __init__(
        self,
        *,
        label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0,
        class_weights: list[Annotated[float, Ge(0)]] | Literal["balanced"] = [],  # noqa: B006 - never changed
        focal_gamma: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing
        self.class_weights = class_weights
        self.focal_gamma = focal_gamma
        self._weights: tuple[float, ...] | None = None

    def build(self, parts: TaskParts) -> None:
        if self.class_weights:
            self._weights = _weights(self.class_weights, parts)
        super().build(parts)

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return `probabilities`, [B, num_classes] float32, without outputs that are no class."""
        probabilities = tf.nn.softmax(self._outputs(batch, training=False))
        return {"probabilities": probabilities[:, : self.num_outputs]}

    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        logits = self._outputs(batch, training=training)
        losses, labels = _cross_entropy(batch["label"], logits)
        is_right = (tf.argmax(logits, axis=-1) == labels) & tf.math.is_finite(losses)
        if training and self.label_smoothing:
            uniform = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
            smoothing = self.label_smoothing
            losses = (1.0 - smoothing) * losses + smoothing * uniform
        if training and self.focal_gamma:
            # Not 0, where the gradient of a power below 1 is infinite.
            doubts = tf.maximum(1.0 - _probability_of(batch["label"], logits), 1e-7)
            losses *= doubts**self.focal_gamma
        if training and self._weights is not None:
            losses *= _weight_of(batch["label"], tf.constant(self._weights))
        return losses, {"accuracy": tf.cast(is_right, tf.float32)}


def _weights(weights: list[float] | str, parts: TaskParts) -> tuple[float, ...]:
    if not isinstance(weights, str):
        if len(weights) != parts.num_classes:
            raise ConfigError(
                f"task.class_weights ({weights}) must have one number for each of the "
                f"{parts.num_classes} classes; it has {len(weights)}"
            )
        return tuple(weights)
    try:
        counts = np.array(parts.class_counts)
    except ConfigError as error:
        raise ConfigError(
            f"task.class_weights ({weights}): {error}; give a list, one number for each class"
        ) from error
    if not counts.all():
        raise ConfigError(
            f"task.class_weights ({weights}): class {int(counts.argmin())} has no example in the "
            "training split; give a list, one number for each class"
        )
    return tuple((counts.sum() / (len(counts) * counts)).tolist())


def _weight_of(labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the weight of each example, [B]; of fractions of classes their mean weight."""
    if labels.shape.rank == 1:
        return tf.gather(weights, labels)
    return tf.linalg.matvec(labels, weights)


def _probability_of(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the probability of each example's class, [B]; of fractions of classes their mean."""
    probabilities = tf.nn.softmax(logits)
    if labels.shape.rank == 1:
        return tf.gather(probabilities, labels, batch_dims=1)
    return tf.reduce_sum(labels * probabilities[:, : labels.shape[-1]], axis=-1)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the loss of each example, [B], and the number of its (largest) class, [B] int64."""
    if labels.shape.rank == 1:
        numbers = tf.cast(labels, tf.int64)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(numbers, logits), numbers
    # A model with the option `outputs` may have more of them than there are classes.
    shares = tf.pad(labels, [[0, 0], [0, logits.shape[-1] - labels.shape[-1]]])
    losses = tf.nn.softmax_cross_entropy_with_logits(shares, logits)
    return losses, tf.argmax(shares, axis=-1)
