"""The configured metrics and the pictures of predicted rows: their names are checked beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from trainer.config.directions import Directions, selections
from trainer.config.schema import Experiment
from trainer.engine.evaluation.evaluator import Evaluation, Rows
from trainer.engine.graph.input.feature_specs import feature_words, fetched_specs
from trainer.errors import ConfigError
from trainer.files import write_json
from trainer.protocols import (
    IN_WORDS,
    PREDICTIONS,
    Dataset,
    DatasetDefaults,
    HasFigures,
    Metric,
    MetricDefaults,
    MetricKind,
    Task,
    TaskDefaults,
    with_defaults,
)
from trainer.summaries import figures
from trainer.text import did_you_mean

NO_CLASS = -1
"""What probabilities that are not finite predict: it equals no label."""

_RESERVED = ("step", "split", "epoch")
"""Keys of a line of metrics.jsonl that are not metrics."""

_SHAPES: Mapping[MetricKind, str] = {
    "class": "labels of [B] and probabilities of [B, {}]",
    "number": "targets and predictions of [B, {}]",
    "multilabel": "labels and probabilities of [B, {}]",
}


class Pictures(Protocol):
    """Draws some of the rows of a split."""

    def reset(self) -> None:
        """Forget all rows."""

    def update(self, rows: Rows) -> None:
        """Add a block of rows."""

    def images(self) -> np.ndarray:
        """Return the images, [N, H, W, 3] uint8; N may be 0."""


def evaluate_rows(
    metrics: Mapping[str, Metric],
    pictures: Mapping[str, Pictures],
    kind: MetricKind,
    run_dir: Path,
    step: int,
    rows: Iterator[Rows],
) -> Evaluation:
    """Return the values and the images of all rows after `step` updates, and write the tables.

    Raises:
        ConfigError: the task does not predict what is compared with the labels.
    """
    for metric in metrics.values():
        metric.reset_state()
    for each in pictures.values():
        each.reset()
    for block in rows:
        update_metrics(metrics, *_compared(block, kind))
        for each in pictures.values():
            each.update(block)
    values: dict[str, float] = {}
    images: dict[str, np.ndarray] = {}
    for name, metric in metrics.items():
        values |= metric_values(name, metric)
        if isinstance(metric, HasFigures):
            images[name] = metric.figure()[None]
            write_json(run_dir / f"{name}.json", {"step": step, **metric.table()})
    drawn = {name: each.images() for name, each in pictures.items()}
    return Evaluation(values, {**images, **{name: x for name, x in drawn.items() if len(x)}})


def _compared(block: Rows, kind: MetricKind) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the labels and the predictions of a block; of generated examples these alone."""
    if (name := PREDICTIONS[kind]) not in block:
        raise ConfigError(
            f"metrics and summary.misclassified need '{name}' "
            f"from the task's predict_step, it gives {sorted(block)}"
        )
    predictions = block[name]
    if kind == "sample":
        return None, predictions
    if kind == "number":
        return block["label"].reshape(predictions.shape), predictions
    return block["label"].astype(np.int64), predictions


def update_metrics(
    metrics: Mapping[str, Metric], labels: np.ndarray | None, predictions: np.ndarray
) -> None:
    """Update all metrics with examples; see `Metric.update_state`."""
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


def adapt_metrics(
    metrics: Mapping[str, Metric], class_names: Sequence[str], task: Task, kind: MetricKind
) -> None:
    """Pass to metrics what they declare: the names of classes, and where labels start to exist.

    Raises:
        ConfigError: one is for labels of another kind, or for generated examples.
    """
    # Only a metric that declares it gets examples without labels.
    default: MetricKind = "class" if kind == "sample" else kind
    if problems := [
        f"metrics.{name} ({type(metric).__name__}) is for {IN_WORDS[own]}, the evaluation of "
        f"{type(task).__name__} has {IN_WORDS[kind]}; remove it"
        for name, metric in metrics.items()
        if (own := kind_of(metric) or default) != kind
    ]:
        raise ConfigError(*problems)
    for metric in metrics.values():
        if hasattr(metric, "class_names"):
            metric.class_names = class_names
        if hasattr(metric, "threshold") and kind_of(metric) == "multilabel":
            threshold = with_defaults(task, TaskDefaults).threshold
            metric.threshold = metric.threshold if threshold is None else threshold


def kind_of(metric: Metric) -> MetricKind | None:
    """Return the labels that a metric is for; None: any."""
    return with_defaults(metric, MetricDefaults).label_kind


def validate_metrics(
    metrics: Mapping[str, Metric],
    num_classes: int,
    task_metrics: Sequence[str],
    kind: MetricKind = "class",
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


def _try_metric(name: str, metric: Metric, num_classes: int, kind: MetricKind) -> list[str]:
    """Return the names of a metric's values, after an update with one example."""
    if kind == "sample":
        return [*with_defaults(metric, MetricDefaults).names]  # it may need more than one example
    labels: np.ndarray = np.zeros(1, np.int64)
    if kind != "class":
        labels = np.zeros((1, num_classes), np.float32 if kind == "number" else np.int64)
    predictions = np.full((1, num_classes), 1 / num_classes, np.float32)
    update_metrics({name: metric}, labels, predictions)
    return list(metric_values(name, metric))


def require_evaluated(experiment: Experiment, names: Sequence[str], directions: Directions) -> None:
    """Raise a ConfigError if a metric that selects is not evaluated or has no direction."""
    problems = []
    for key, name, fix, mode in selections(experiment):
        if name not in names:
            problems.append(
                f"{key} ({name}) must be a metric of the evaluation, "
                f"which has {', '.join(names)}{did_you_mean(name, names)}"
            )
        elif line := directions.problem(key, name, fix, mode):
            problems.append(line)
    if problems:
        raise ConfigError(*problems)


def predicted_classes(probabilities: np.ndarray) -> np.ndarray:
    """Return the most probable class of each example, [B] int64, from probabilities, [B, C]."""
    is_finite = np.isfinite(probabilities).all(axis=1)
    return np.where(is_finite, np.argmax(probabilities, axis=1), NO_CLASS)


class _Example(NamedTuple):
    """A misclassified example; in order the most probable error first, then the smallest id."""

    negative_probability: float
    id: int
    label: int
    prediction: int


class MisclassifiedExamples:
    """Draws the examples that are misclassified with the greatest probability.

    Args:
        dataset: the dataset, whose test split has the examples. White is its `max_value`, if it has
            that attribute.

    Raises:
        ConfigError: the examples are not images.
    """

    def __init__(self, count: int, dataset: Dataset, class_names: Sequence[str]) -> None:
        self._count = count
        self._split = dataset.test
        self._class_names = class_names
        features = fetched_specs(dataset.test)["features"]
        shape = [] if tf.nest.is_nested(features) else list(features.shape)[1:]
        if len(shape) != 3 or shape[2] not in (1, 3):
            raise ConfigError(
                f"summary.misclassified ({count}) needs images, features of [height, width, "
                f"1 or 3]; the dataset has {feature_words(features)}; add summary.misclassified=0"
            )
        white = with_defaults(dataset, DatasetDefaults).max_value
        self._white = white or (255.0 if features.dtype.is_integer else 1.0)
        self.reset()

    def reset(self) -> None:
        self._examples: list[_Example] = []

    def update(self, rows: Rows) -> None:
        """Add the misclassified ones among some examples, with `probabilities` [B, C]."""
        ids, labels, probabilities = (rows[name] for name in ("id", "label", "probabilities"))
        predictions = predicted_classes(probabilities)
        highest = probabilities.max(axis=1)
        examples = [
            _Example(-float(highest[row]), int(ids[row]), int(labels[row]), int(predictions[row]))
            for row in np.flatnonzero((predictions != labels) & (predictions != NO_CLASS))
        ]
        self._examples = sorted([*self._examples, *examples])[: self._count]

    def images(self) -> np.ndarray:
        """Return the images as the dataset has them, the most probable errors first.

        Each has the caption "label -> prediction (probability)".
        """
        if not self._examples:
            return np.zeros((0, 1, 1, 3), np.uint8)
        captions = [
            f"{self._class_names[example.label]} -> {self._class_names[example.prediction]} "
            f"({-example.negative_probability:.2f})"
            for example in self._examples
        ]
        with tf.device("CPU:0"):
            ids = tf.constant([example.id for example in self._examples], tf.int64)
            features = self._split.fetch(ids)["features"].numpy()
        gray = np.clip(features.astype(np.float64) / self._white, 0.0, 1.0)
        return figures.add_captions(np.rint(255 * gray).astype(np.uint8), captions)
