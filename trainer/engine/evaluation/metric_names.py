"""The names and values of the configured metrics, and the checks of both before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from trainer.config.directions import Directions
from trainer.config.options.constraints import did_you_mean
from trainer.config.rules.checkpoint import selections
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.protocols import IN_WORDS, LabelKind, Metric, MetricDefaults, with_defaults

_RESERVED = ("step", "split", "epoch")
"""Keys of a line of metrics.jsonl that are not metrics."""

_SHAPES: Mapping[LabelKind, str] = {
    "class": "labels of [B] and probabilities of [B, {}]",
    "number": "targets and predictions of [B, {}]",
    "multilabel": "labels and probabilities of [B, {}]",
}


def update_metrics(
    metrics: Mapping[str, Metric], labels: np.ndarray, predictions: np.ndarray
) -> None:
    """Update all metrics with examples.

    Args:
        metrics: the metrics by name.
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

    Args:
        metrics: the metrics by name.
        num_classes: the number of classes.
        task_metrics: the names of the task's own metrics.
        kind: what the labels are.

    Raises:
        ConfigError: a metric is for other labels, one of Keras does not accept such examples or
            returns no numbers, or two values have the same name.
    """
    _check_kind(metrics, kind)
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


def kind_of(metric: Metric) -> LabelKind | None:
    """Return the labels that a metric is for; None: any."""
    return with_defaults(metric, MetricDefaults).label_kind


def _check_kind(metrics: Mapping[str, Metric], kind: LabelKind) -> None:
    """Raise unless all metrics that say for which labels they are, are for these.

    Raises:
        ConfigError: one is not.
    """
    if problems := [
        f"metrics.{name} ({type(metric).__name__}) is for {IN_WORDS[own]}, the labels are "
        f"{IN_WORDS[kind]}; remove it"
        for name, metric in metrics.items()
        if (own := kind_of(metric) or kind) != kind
    ]:
        raise ConfigError(*problems)


def _try_metric(name: str, metric: Metric, num_classes: int, kind: LabelKind) -> list[str]:
    """Return the names of a metric's values, after an update with one example."""
    labels: np.ndarray = np.zeros(1, np.int64)
    if kind != "class":
        labels = np.zeros((1, num_classes), np.float32 if kind == "number" else np.int64)
    predictions = np.full((1, num_classes), 1 / num_classes, np.float32)
    update_metrics({name: metric}, labels, predictions)
    return list(metric_values(name, metric))


def require_evaluated(experiment: Experiment, names: Sequence[str], directions: Directions) -> None:
    """Raise unless every metric that selects is evaluated, and its direction is known.

    Args:
        experiment: the configuration.
        names: all metrics of an evaluation.
        directions: what the task and the metrics declare.

    Raises:
        ConfigError: one is not.
    """
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
