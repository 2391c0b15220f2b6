"""What a Keras model is trained and evaluated by: the losses and metrics of its outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.config.directions import of_keras_name
from trainer.errors import ConfigError
from trainer.protocols import Batch, LabelKind, PerExample, TaskParts
from trainer.tasks.keras.compiled import Compiled, library_of
from trainer.tasks.keras.output_losses import OutputLoss, losses_of
from trainer.tasks.keras.output_metrics import OutputMetric, metrics_of
from trainer.tasks.keras.outputs import output_names, pairs


@dataclass(frozen=True)
class Objective:
    """Losses and metrics of a model's outputs.

    Attributes:
        names: the names of the outputs.
        losses: the loss of each output; None: it has none.
        metrics: the metrics that are means.
        others: the metrics that are none: of a whole split.
        class_weights: how much an example of each class counts in the loss; empty: 1 each.
    """

    names: Sequence[str]
    losses: Sequence[OutputLoss | None]
    metrics: Sequence[OutputMetric]
    others: Sequence[OutputMetric]
    class_weights: Mapping[int, float]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of all metrics, `loss` first; of several losses each by itself too."""
        each = [f"{loss.name}_loss" for loss in self._several]
        return ("loss", *each, *(m.name for m in self.metrics))

    @property
    def directions(self) -> dict[str, str]:
        """Which direction of each metric is better, where its name or class tells."""
        directions = {m.name: of_keras_name(m.kind) for m in (*self.metrics, *self.others)}
        return {name: direction for name, direction in directions.items() if direction}

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
            if loss in self._several:
                values[f"{loss.name}_loss"] = losses
            total += loss.weight * losses
        for metric in self.metrics:
            label, output = compared[metric.output]
            if label is None:
                raise ConfigError(f"task.metrics has {metric.name}, whose output has no label")
            values[metric.name] = metric.per_example(label, output, weight)
        return total, values

    def compared(self, batch: Batch, outputs: Any) -> list[tuple[tf.Tensor | None, tf.Tensor]]:
        """Return the label and the output of each output."""
        has_loss = [loss is not None for loss in self.losses]
        return pairs(batch.get("label"), outputs, self.names, has_loss=has_loss)

    def predictions(self, outputs: Any, label_kind: LabelKind | None) -> dict[str, tf.Tensor]:
        """Return the outputs by name; of a single one what metrics of such labels compare."""
        flat = tf.nest.flatten(outputs)
        loss = self.losses[0]
        if len(flat) > 1 or flat[0].shape.rank != 2 or label_kind is None or loss is None:
            return dict(zip(self.names, flat, strict=True))
        if label_kind == "number":
            return {"prediction": tf.cast(flat[0], tf.float32)}
        probabilities = loss.probabilities(flat[0])
        if label_kind == "class" and probabilities.shape[-1] == 1:
            probabilities = tf.concat([1.0 - probabilities, probabilities], axis=-1)
        return {"probabilities": probabilities}

    @property
    def _several(self) -> list[OutputLoss]:
        """The losses that are reported by themselves: none if there is but one."""
        losses = [loss for loss in self.losses if loss is not None]
        return losses if len(losses) > 1 else []

    def _class_weight(self, label: tf.Tensor) -> tf.Tensor:
        """Return the weight of each example's class, [B] float32."""
        if label.shape.rank > 1 and label.shape[-1] > 1:
            label = tf.argmax(label, axis=-1)
        numbers = tf.reshape(tf.cast(label, tf.int64), [-1])
        weights = tf.ones_like(numbers, tf.float32)
        for number, weight in self.class_weights.items():
            weights = tf.where(numbers == int(number), float(weight), weights)
        return weights


def objective_of(
    model: Any,
    arguments: Compiled,
    options: Collection[str],
    parts: TaskParts,
    class_weights: Mapping[int, float],
    from_logits: bool | None,
) -> Objective:
    """Return the objective of a model.

    Args:
        model: the user's, of either Keras.
        arguments: losses and metrics: of the options, else what it was compiled with.
        options: which of these are options.
        parts: knows the features.
        class_weights: how much each class counts; empty: 1 each.
        from_logits: whether cross-entropies take logits; None: of the outputs of a linear layer.

    Raises:
        ConfigError: there is no loss, or something does not belong to the outputs.
    """
    names = output_names(model, _symbolic_outputs(model, parts))
    library = library_of(model)
    if arguments.loss is None:
        raise ConfigError(
            "task.loss (null) must be set for a model that is not compiled with one; add "
            "task.loss=<name>, such as sparse_categorical_crossentropy, or compile the model"
        )
    keys = {
        name: f"task.{name}" if name in options else f"model: compile({name})"
        for name in ("loss", "metrics", "weighted_metrics")
    }
    metrics = metrics_of(keys["metrics"], arguments.metrics, names, library)
    if "metrics" not in options:
        weighted, key = arguments.weighted_metrics, keys["weighted_metrics"]
        metrics += metrics_of(key, weighted, names, library, is_weighted=True)
    losses, weights = arguments.loss, arguments.loss_weights
    return Objective(
        names,
        losses_of(keys["loss"], losses, weights, names, library, from_logits=from_logits),
        [metric for metric in metrics if metric.choose is not None],
        [metric for metric in metrics if metric.choose is None],
        class_weights,
    )


def _symbolic_outputs(model: Any, parts: TaskParts) -> Any:
    """Return the outputs of a model: a functional one knows them, another is called."""
    for name in ("_nested_outputs", "_outputs_struct"):  # of tf_keras, of Keras 3
        if (outputs := getattr(model, name, None)) is not None:
            return outputs
    library = library_of(model)
    inputs = tf.nest.map_structure(
        lambda spec: library.Input(spec.shape[1:], dtype=spec.dtype.name), parts.feature_specs
    )
    return model(inputs)
