"""What tasks with one model, one optimizer and a label for each example have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import tensorflow as tf

from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts
from trainer.tasks import model_outputs


class Supervised(ABC):
    """Trains `model(features)` on labels.

    Attributes:
        models: `model`.
        optimizers: `model`.
        num_outputs: how many outputs of the model are used: one for each class, target or label.
    """

    def __init__(self) -> None:
        self.num_outputs: int | None = None
        self._all_outputs: int | None = None
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        """Create the model and its optimizer."""
        self.num_outputs = parts.num_classes
        self._all_outputs = parts.num_outputs
        self.models = {"model": parts.model()}
        self.optimizers = {"model": parts.optimizer()}

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Make one update on the global batch."""
        return step.minimize(
            self._train_loss, batch, self.models["model"], self.optimizers["model"]
        )

    def eval_step(self, batch: Batch) -> PerExample:
        """Return the loss and the metrics of each example, [B]."""
        return self._loss(batch, training=False)

    def _train_loss(self, batch: Batch) -> PerExample:
        return self._loss(batch, training=True)

    @abstractmethod
    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        """Return the loss and the metrics of each example, [B]."""

    def _outputs(self, batch: Batch, *, training: bool) -> tf.Tensor:
        """Return all outputs of the model, [B, outputs] float32.

        They are as many as there are classes, targets or labels, or as the model's option `outputs`
        says.
        """
        return model_outputs.call(
            self.models["model"],
            batch["features"],
            training=training,
            shape=[self._all_outputs],
            fix="give its last layer one unit for each class, target or label of the dataset "
            f"(num_classes, {self.num_outputs})",
        )
