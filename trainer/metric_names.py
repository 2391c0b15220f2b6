"""The numbers that metrics give, and their names: no two are alike, and who asks for one by name finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import Metric
from trainer.rules import did_you_mean
from trainer.schema import Experiment

_OF_A_LINE = ("step", "split", "epoch")
"""What a line of metrics.jsonl has besides metrics."""


def feed(metrics: Mapping[str, Metric], labels: np.ndarray, probabilities: np.ndarray) -> None:
    """Gives examples to all metrics: labels, [B] int64, and probabilities, [B, C] float32."""
    with tf.device("CPU:0"):  # where Keras' metrics have their variables: the devices are the model's
        for metric in metrics.values():
            metric.update_state(labels, probabilities)


def values(name: str, metric: Metric) -> dict[str, float]:
    """Gives what a metric came to: a number has the metric's name, and numbers with names have these.

    Raises:
        TypeError: it gives something else.
    """
    result = metric.result()
    found = result if isinstance(result, Mapping) else {name: result}
    return {str(key): float(value) for key, value in found.items()}


def rehearse(metrics: Mapping[str, Metric], num_classes: int, task_metrics: Sequence[str]) -> list[str]:
    """Tries all metrics on one example, for what does not go must not come out after hours; gives the names of their numbers.

    Args:
        metrics: the metrics by name.
        num_classes: how many classes there are.
        task_metrics: the names of the task's own metrics.

    Raises:
        ConfigError: a metric of Keras does not take such examples, one gives no numbers, or two numbers have the same name.
    """
    owners = {**dict.fromkeys(_OF_A_LINE, "each line of metrics.jsonl"), **dict.fromkeys(task_metrics, "the task")}
    problems, names = [], []
    for metric_name, metric in metrics.items():
        try:
            feed({metric_name: metric}, np.zeros(1, np.int64), np.full((1, num_classes), 1 / num_classes, np.float32))
            found = list(values(metric_name, metric))
        except (ValueError, TypeError, tf.errors.OpError) as error:
            if not type(metric).__module__.startswith(("tf_keras.", "keras.")):
                raise  # a mistake in the user's code, which needs its traceback
            problems.append(f"metrics.{metric_name} {_unfit(metric, num_classes)}: {str(error).strip().splitlines()[-1]}")
            continue
        for name in found:
            if name in owners:
                problems.append(f"metrics.{metric_name} gives '{name}', which {owners[name]} gives too; call one of them otherwise")
            owners.setdefault(name, f"metrics.{metric_name}")
        names += found
    if problems:
        raise ConfigError(*problems)
    return names


def require_known(experiment: Experiment, names: Sequence[str]) -> None:
    """Makes sure that every metric that the configuration names is evaluated.

    Args:
        experiment: the configuration.
        names: all metrics of the test split.

    Raises:
        ConfigError: one is not.
    """
    asked = {"checkpoint.best.metric": experiment.checkpoint.best.metric, "sweep.metric": experiment.sweep.metric}
    # What a user's own callback calls `metric` is its own business.
    ours = {name: node for name, node in (experiment.callbacks or {}).items() if node["_target_"].startswith("trainer.")}
    asked |= {f"callbacks.{name}.metric": node.get("metric") for name, node in ours.items()}
    problems = [
        f"{key} ({name}) must be a metric of the test split, which has {', '.join(names)}{did_you_mean(name, names)}"
        for key, name in asked.items()
        if isinstance(name, str) and name not in names
    ]
    if problems:
        raise ConfigError(*problems)


def _unfit(metric: Metric, num_classes: int) -> str:
    return f"({type(metric).__name__}) must give numbers for labels of [B] and probabilities of [B, {num_classes}]"
