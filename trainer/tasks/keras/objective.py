"""What a Keras model is trained and evaluated by: the losses and metrics of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import Batch, PerExample
from trainer.tasks.keras.losses import OutputLoss
from trainer.tasks.keras.metrics import OutputMetric
from trainer.tasks.keras.outputs import pairs


@dataclass(frozen=True)
class Objective:
    """Losses and metrics of a model's outputs.

    Attributes:
        names: the names of the outputs.
        losses: the loss of each output; None: it has none.
        metrics: the metrics that are means.
        class_weights: how much an example of each class counts in the loss; empty: 1 each.
    """

    names: Sequence[str]
    losses: Sequence[OutputLoss | None]
    metrics: Sequence[OutputMetric]
    class_weights: Mapping[int, float]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of all metrics, `loss` first; of several outputs each has its own loss."""
        several = [loss.name for loss in self.losses if loss] if len(self.names) > 1 else []
        return ("loss", *(f"{name}_loss" for name in several), *(m.name for m in self.metrics))

    def per_example(self, batch: Batch, outputs: Any, *, training: bool) -> PerExample:
        """Return the weighted sum of the losses of each example, [B], and its metrics.

        Args:
            batch: has `label`, and maybe `sample_weight`.
            outputs: what the model returned for it.
            training: class weights count in training alone.
        """
        compared = self.compared(batch, outputs)
        weight = batch.get("sample_weight")
        total: Any = 0.0
        values: dict[str, Any] = {}
        for loss, (label, output) in zip(self.losses, compared, strict=True):
            if loss is None:
                continue
            if label is None:
                raise ConfigError(f"dataset: there is no label for the output {loss.name}")
            counts = weight
            if training and self.class_weights:
                counts = self._class_weight(label) * (1.0 if weight is None else weight)
            losses = loss.per_example(label, output, counts)
            if len(self.names) > 1:
                values[f"{loss.name}_loss"] = losses
            total += loss.weight * losses
        for metric in self.metrics:
            label, output = compared[metric.output]
            if label is None:
                raise ConfigError(f"task.metrics has {metric.name}, whose output has no label")
            values[metric.name] = metric.per_example(label, output, weight)
        return total, values

    def compared(
        self, batch: Batch, outputs: Any
    ) -> list[tuple[tf.Tensor | None, tf.Tensor]]:
        """Return the label and the output of each output."""
        has_loss = [loss is not None for loss in self.losses]
        return pairs(batch.get("label"), outputs, self.names, has_loss=has_loss)

    def _class_weight(self, label: tf.Tensor) -> tf.Tensor:
        """Return the weight of each example's class, [B] float32."""
        if label.shape.rank > 1 and label.shape[-1] > 1:
            label = tf.argmax(label, axis=-1)
        numbers = tf.reshape(tf.cast(label, tf.int64), [-1])
        weights = tf.ones_like(numbers, tf.float32)
        for number, weight in self.class_weights.items():
            weights = tf.where(numbers == int(number), float(weight), weights)
        return weights
