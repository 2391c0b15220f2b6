"""The configured metrics of predictions: names and values, checked before training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from trainer.config.directions import Directions, selections
from trainer.config.options.constraints import did_you_mean
from trainer.config.schema import Experiment
from trainer.engine.evaluation.evaluator import Evaluation
from trainer.engine.evaluation.misclassified import MisclassifiedExamples
from trainer.errors import ConfigError
from trainer.files import write_json
from trainer.protocols import (
    IN_WORDS,
    PREDICTIONS,
    HasFigures,
    LabelKind,
    Metric,
    MetricDefaults,
    SampleMetric,
    Task,
    TaskDefaults,
    with_defaults,
)

_RESERVED = ("step", "split", "epoch")
"""Keys of a line of metrics.jsonl that are not metrics."""

_SHAPES: Mapping[LabelKind, str] = {
    "class": "labels of [B] and probabilities of [B, {}]",
    "number": "targets and predictions of [B, {}]",
    "multilabel": "labels and probabilities of [B, {}]",
}


@dataclass(eq=False)
class PredictionMetrics:
    """Computes metrics and figures from the predictions for a split.

    Attributes:
        misclassified: collects misclassified examples; None: they are not shown.
        run_dir: the run directory, for the tables of metrics with figures.
    """

    metrics: Mapping[str, Metric]
    misclassified: MisclassifiedExamples | None
    kind: LabelKind
    run_dir: Path

    def judge(self, step: int, rows: Iterator[Mapping[str, np.ndarray]]) -> Evaluation:
        """Return the values, draw the images, and write the tables; see `ExtraMetrics`.

        Raises:
            ConfigError: the task does not predict what is compared with the labels.
        """
        for metric in self.metrics.values():
            metric.reset_state()
        if self.misclassified:
            self.misclassified.reset()
        for block in rows:
            self._update(block)
        values: dict[str, float] = {}
        images: dict[str, np.ndarray] = {}
        for name, metric in self.metrics.items():
            values |= metric_values(name, metric)
            if isinstance(metric, HasFigures):
                images[name] = metric.figure()[None]
                table = {"step": step, **metric.table()}
                write_json(self.run_dir / f"{name}.json", table)
        if self.misclassified and len(misclassified := self.misclassified.images()):
            images["misclassified"] = misclassified
        return Evaluation(values, images)

    def _update(self, block: Mapping[str, np.ndarray]) -> None:
        name = PREDICTIONS[self.kind]
        if name not in block:
            raise ConfigError(
                f"metrics and summary.misclassified need '{name}' "
                f"from the task's predict_step, it gives {sorted(block)}"
            )
        predictions = block[name]
        labels = block["label"]
        if self.kind == "number":
            labels = labels.reshape(predictions.shape)
        else:
            labels = labels.astype(np.int64)
        update_metrics(self.metrics, labels, predictions)
        if self.misclassified:
            self.misclassified.update(block["id"], labels, predictions)


def update_metrics(
    metrics: Mapping[str, Metric], labels: np.ndarray, predictions: np.ndarray
) -> None:
    """Update all metrics with examples.

    Args:
        labels: [B] int64, or [B, ...] of numbers and of several labels.
        predictions: [B, C] float32.
    """
    # Where Keras' metrics have their variables: the accelerators belong to the model.
    with tf.device("CPU:0"):
        for metric in metrics.values():
            metric.update_state(labels, predictions)


def metric_values(name: str, metric: Metric) -> dict[str, float]:
    """Return the values of a metric: one under its own name, or several under theirs.

    Raises:
        TypeError: its result is neither a number nor a mapping to numbers.
    """
    result = metric.result()
    values = result if isinstance(result, Mapping) else {name: result}
    return {str(key): float(value) for key, value in values.items()}


def validate_metrics(
    metrics: Mapping[str, Metric],
    num_classes: int,
    task_metrics: Sequence[str],
    kind: LabelKind = "class",
) -> list[str]:
    """Return the names of all values, from a trial run on one example.

    So an incompatible metric fails before training, not at the first evaluation.

    Raises:
        ConfigError: a metric of Keras does not accept such examples or returns no numbers, or two
            values have the same name.
    """
    owners = {
        **dict.fromkeys(_RESERVED, "each line of metrics.jsonl"),
        **dict.fromkeys(task_metrics, "the task"),
    }
    problems = []
    names = []
    for metric_name, metric in metrics.items():
        try:
            metric_names = _try_metric(metric_name, metric, num_classes, kind)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            if not type(metric).__module__.startswith(("tf_keras.", "keras.")):
                raise  # a mistake in the user's code, which needs its traceback
            problems.append(
                f"metrics.{metric_name} ({type(metric).__name__}) must give numbers for "
                f"{_SHAPES[kind].format(num_classes)}: {str(error).strip().splitlines()[-1]}"
            )
            continue
        for name in metric_names:
            if name in owners:
                problems.append(
                    f"metrics.{metric_name} gives '{name}', which {owners[name]} gives too; "
                    "rename one of them"
                )
            owners.setdefault(name, f"metrics.{metric_name}")
        names += metric_names
    if problems:
        raise ConfigError(*problems)
    return names


def adapt_metrics(
    metrics: Mapping[str, Metric], class_names: Sequence[str], task: Task, kind: LabelKind
) -> None:
    """Tell metrics what they ask for: the names of classes, and from when on a label is there.

    Raises:
        ConfigError: one judges generated examples, or is for labels of another kind.
    """
    if problems := [
        f"metrics.{name} ({type(metric).__name__}) judges generated examples, and "
        f"{type(task).__name__} generates none; remove it, or choose task=gan"
        for name, metric in metrics.items()
        if isinstance(metric, SampleMetric)
    ]:
        raise ConfigError(*problems)
    if problems := [
        f"metrics.{name} ({type(metric).__name__}) is for {IN_WORDS[own]}, the labels are "
        f"{IN_WORDS[kind]}; remove it"
        for name, metric in metrics.items()
        if (own := kind_of(metric) or kind) != kind
    ]:
        raise ConfigError(*problems)
    for metric in metrics.values():
        if hasattr(metric, "class_names"):
            metric.class_names = class_names
        if hasattr(metric, "threshold") and kind_of(metric) == "multilabel":
            threshold = with_defaults(task, TaskDefaults).threshold
            metric.threshold = metric.threshold if threshold is None else threshold


def kind_of(metric: Metric) -> LabelKind | None:
    """Return the labels that a metric is for; None: any."""
    return with_defaults(metric, MetricDefaults).label_kind


def _try_metric(name: str, metric: Metric, num_classes: int, kind: LabelKind) -> list[str]:
    """Return the names of a metric's values, after an update with one example."""
    labels: np.ndarray = np.zeros(1, np.int64)
    if kind != "class":
        labels = np.zeros((1, num_classes), np.float32 if kind == "number" else np.int64)
    predictions = np.full((1, num_classes), 1 / num_classes, np.float32)
    update_metrics({name: metric}, labels, predictions)
    return list(metric_values(name, metric))


def require_evaluated(experiment: Experiment, names: Sequence[str], directions: Directions) -> None:
    """Raise a ConfigError if a metric that selects is not evaluated or has no known direction."""
    problems = []
    for key, name, mode_key, mode in selections(experiment):
        if name not in names:
            problems.append(
                f"{key} ({name}) must be a metric of the evaluation, "
                f"which has {', '.join(names)}{did_you_mean(name, names)}"
            )
        elif line := directions.problem(key, name, mode_key, mode):
            problems.append(line)
    if problems:
        raise ConfigError(*problems)


def misclassified_problems(experiment: Experiment, reason: str) -> list[str]:
    """Return why misclassified examples cannot be shown, if they are to be."""
    count = experiment.summary.misclassified if experiment.trains else 0
    return [f"summary.misclassified ({count}) {reason}; add summary.misclassified=0"] * (count > 0)
