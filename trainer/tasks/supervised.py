"""What tasks with one model and one optimizer have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts


class OneModel(ABC):
    """Trains one model with one optimizer."""

    def __init__(self) -> None:
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        self.models = {"model": parts.model()}
        self.optimizers = {"model": parts.optimizer()}

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        return step.minimize(
            self._train_loss, batch, self.models["model"], self.optimizers["model"]
        )

    def eval_step(self, batch: Batch) -> PerExample:
        return self._loss(batch, training=False)

    def _train_loss(self, batch: Batch) -> PerExample:
        return self._loss(batch, training=True)

    @abstractmethod
    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        """Return the loss and the metrics of each example, [B]."""

    def _call(
        self, features: tf.Tensor, *, training: bool, shape: Sequence[int | None] | None, fix: str
    ) -> tf.Tensor:
        """Return what the model makes of features, [B, *shape] float32; `fix`: for the error."""
        outputs = self.models["model"](features, training=training)
        if not tf.is_tensor(outputs) or not outputs.shape[1:].is_compatible_with(shape):
            raise ConfigError(
                f"model: the task takes one output {_shape([None, *(shape or ())])}, the model "
                f"returns {_in_words(outputs)}; {fix}"
            )
        return tf.cast(outputs, tf.float32)


class Supervised(OneModel):
    """Trains `model(features)` on a label for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.num_outputs: int | None = None
        self._all_outputs: int | None = None

    def build(self, parts: TaskParts) -> None:
        self.num_outputs = parts.num_classes
        self._all_outputs = parts.num_outputs
        super().build(parts)

    def _outputs(self, batch: Batch, *, training: bool) -> tf.Tensor:
        """Return all outputs of the model, [B, outputs] float32.

        They are as many as there are classes, targets or labels, or as the model's option `outputs`
        says.
        """
        return self._call(
            batch["features"],
            training=training,
            shape=[self._all_outputs],
            fix="give its last layer one unit for each class, target or label of the dataset "
            f"(num_classes, {self.num_outputs})",
        )


def _in_words(outputs: Any) -> str:
    if outputs is None:
        return "None"
    if isinstance(outputs, Mapping):
        each = ", ".join(f"{name} {_in_words(value)}" for name, value in outputs.items())
        return f"a dict of {len(outputs)}: {each}"
    if isinstance(outputs, Sequence):
        each = ", ".join(map(_in_words, outputs))
        return f"a list of {len(outputs)}: {each}"
    return _shape(outputs.shape) if tf.is_tensor(outputs) else type(outputs).__name__


def _shape(shape: Sequence[int | None]) -> str:
    return f"[{', '.join(['B', *map(str, shape[1:])])}]"
