"""Keras programs: a model, of either Keras, by its own loss, metrics, optimizer and steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from trainer.config.directions import of_keras_name
from trainer.engine.evaluation.evaluator import Evaluation, Evaluator
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source
from trainer.errors import ConfigError
from trainer.protocols import Batch, Dataset, Metrics, PerExample, StepContext, TaskParts
from trainer.tasks.keras import compiled_optimizer
from trainer.tasks.keras.compiled import Compiled, compiled_with
from trainer.tasks.keras.losses import losses_of
from trainer.tasks.keras.metrics import OutputMetric, WholeSplitMetrics, metrics_of
from trainer.tasks.keras.objective import Objective
from trainer.tasks.keras.outputs import output_names


class Keras:
    """Trains a Keras model as `fit` does.

    What a model was compiled with counts unless an option says otherwise: loss and its weights,
    metrics, and the optimizer, made the fused one of the same name.

    Args:
        loss: a loss by Keras' name, or a node with `_target_`; of several outputs a dict or a list.
        loss_weights: how much the loss of each output counts, likewise.
        metrics: metrics by Keras' names or as nodes: a list, or a dict by output.
        class_weights: number of a class -> how much the loss of its examples counts in training.
        from_logits: whether cross-entropies take logits; auto: of the outputs of a linear layer.
    """

    def __init__(
        self,
        *,
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        class_weights: dict[int, float] | None = None,
        from_logits: bool | Literal["auto"] = "auto",
    ) -> None:
        self._options = Compiled(loss, loss_weights, metrics)
        self._class_weights = class_weights or {}
        self._from_logits = None if from_logits == "auto" else from_logits
        self.metrics: tuple[str, ...] = ("loss",)
        self.models: dict[str, Any] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}
        self.label_kind: Any = None
        self.direction: dict[str, str] = {}
        self._whole: list[OutputMetric] = []

    def build(self, parts: TaskParts) -> None:
        """Create the model and its optimizer, and read what it was compiled with."""
        model = parts.model()
        own = getattr(model, "keras_model", model)  # the user's, of Keras 3
        compiled = compiled_with(own)
        self.models = {"model": model}
        self.optimizers = {"model": compiled_optimizer.build(parts, compiled.optimizer)}
        self._objective = self._make_objective(own, compiled, _symbolic_outputs(own, parts))
        self.metrics = self._objective.metric_names
        self.label_kind = parts.label_kind

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Make one update on the global batch."""
        return step.minimize(
            lambda part: self._loss(part, training=True),
            batch,
            self.models["model"],
            self.optimizers["model"],
        )

    def eval_step(self, batch: Batch) -> PerExample:
        """Return the loss and the metrics of each example, [B]."""
        return self._loss(batch, training=False)

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the outputs by name, [B, ...]; of a single one what fits the labels.

        `probabilities`, [B, classes], where the labels are classes, and `prediction` where they are
        numbers.
        """
        outputs = self._call(batch, training=False)
        flat = tf.nest.flatten(outputs)
        names = self._objective.names
        loss = self._objective.losses[0]
        if len(flat) > 1 or flat[0].shape.rank != 2 or self.label_kind is None or loss is None:
            return dict(zip(names, flat, strict=True))
        if self.label_kind == "number":
            return {"prediction": tf.cast(flat[0], tf.float32)}
        probabilities = loss.probabilities(flat[0])
        if self.label_kind == "class" and probabilities.shape[-1] == 1:
            probabilities = tf.concat([1.0 - probabilities, probabilities], axis=-1)
        return {"probabilities": probabilities}

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> Evaluator:
        """Return what evaluates a split: means by the examples, all other metrics at once."""
        extra = inference.configured_metrics(predictor)
        if not self._whole:
            return inference.split_evaluator(source, extra)
        whole = WholeSplitMetrics(self._whole)
        compared = inference.predict_by(_Compared(self, inference.dataset), source, source.split)

        def judge(step: int, rows: Iterator[Mapping[str, np.ndarray]]) -> Evaluation:
            return Evaluation(whole.values(rows))

        return inference.split_evaluator(source, extra, inference.extra_metrics(judge, compared))

    def _make_objective(self, own: Any, compiled: Compiled, outputs: Any) -> Objective:
        names = output_names(own, outputs)
        library = _library_of(own)
        given = self._options
        key = "task.loss" if given.loss is not None else "model: compile(loss)"
        loss = compiled.loss if given.loss is None else given.loss
        weights = compiled.loss_weights if given.loss_weights is None else given.loss_weights
        if loss is None:
            raise ConfigError(
                "task.loss (null) must be set for a model that is not compiled with one; add "
                "task.loss=<name>, such as sparse_categorical_crossentropy, or compile the model"
            )
        metrics = compiled.metrics if given.metrics is None else given.metrics
        found = metrics_of("task.metrics", metrics, names, library)
        if given.metrics is None:
            found += metrics_of(
                "model: compile(weighted_metrics)",
                compiled.weighted_metrics,
                names,
                library,
                is_weighted=True,
            )
        self._whole = [metric for metric in found if metric.choose is None]
        self.direction = _directions(found)
        return Objective(
            names,
            losses_of(key, loss, weights, names, library, from_logits=self._from_logits),
            [metric for metric in found if metric.choose is not None],
            self._class_weights,
        )

    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        outputs = self._call(batch, training=training)
        return self._objective.per_example(batch, outputs, training=training)

    def _call(self, batch: Batch, *, training: bool) -> Any:
        return self.models["model"](batch["features"], training=training)


class _Compared:
    """Predicts, for each example, its labels and the outputs that they are compared with."""

    def __init__(self, task: Keras, dataset: Dataset) -> None:
        self._task = task
        self._dataset = dataset

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Turn a fetched batch into the model's input."""
        return self._dataset.transform(batch, draws)

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return `label/<i>` and `output/<i>` of each output, and `sample_weight`."""
        outputs = self._task._call(batch, training=False)
        rows = {}
        for i, (label, output) in enumerate(self._task._objective.compared(batch, outputs)):
            if label is not None:
                rows |= {f"label/{i}": label, f"output/{i}": output}
        if "sample_weight" in batch:
            rows["sample_weight"] = batch["sample_weight"]
        return rows


def _library_of(model: Any) -> Any:
    if isinstance(model, tf.keras.layers.Layer):
        return tf.keras
    import keras

    return keras


def _symbolic_outputs(model: Any, parts: TaskParts) -> Any:
    """Return the outputs of a model: a functional one knows them, another is called."""
    for name in ("_nested_outputs", "_outputs_struct"):  # of tf_keras, of Keras 3
        if (outputs := getattr(model, name, None)) is not None:
            return outputs
    library = _library_of(model)
    inputs = tf.nest.map_structure(
        lambda spec: library.Input(spec.shape[1:], dtype=spec.dtype.name), parts.feature_specs
    )
    return model(inputs)


def _directions(metrics: list[OutputMetric]) -> dict[str, str]:
    """Return which direction of each metric is better, where its name or class tells."""
    found = {metric.name: of_keras_name(metric.kind) for metric in metrics}
    return {name: direction for name, direction in found.items() if direction}
