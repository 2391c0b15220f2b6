"""Metrics as they leave a replica: the sum and the weight of each, packed into one vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from trainer.metric_protocols import DerivesMetrics
from trainer.protocols import Metrics, Task

Sums = dict[str, tuple[tf.Tensor, tf.Tensor]]
"""Name of a metric -> (sum, weight), float32 scalars."""


def sums_of(losses: tf.Tensor, metrics: Mapping[str, tf.Tensor], weight: tf.Tensor) -> Sums:
    """Add up the loss and the metrics of each example, weighted.

    Args:
        losses: the loss of each example, [b].
        metrics: name -> the metric of each example, [b].
        weight: the weight of each example, [b] float32.
    """
    total = tf.reduce_sum(weight)
    return {
        name: (tf.reduce_sum(tf.cast(x, tf.float32) * weight), total)
        for name, x in {"loss": losses, **metrics}.items()
    }


def pack(task: Task, metrics: Metrics) -> tf.Tensor:
    """Return (sum, weight) of each of the task's metrics as one vector, [2 * metrics] float32.

    Raises:
        ValueError: the step returned other metrics than the task declares.
    """
    if set(metrics) != set(task.metrics):
        raise ValueError(
            f"{type(task).__name__} declares the metrics {sorted(task.metrics)} "
            f"but its step gave {sorted(metrics)}"
        )
    return tf.stack([tf.cast(x, tf.float32) for name in task.metrics for x in metrics[name]])


def unpack(task: Task, sums: Any) -> dict[str, float]:
    """Return the value of each metric from packed sums; NaN where the weight is zero.

    Metrics that a task derives come last, each from the mean over all examples.
    """
    values = [float(x) for x in sums]
    means = {
        name: values[2 * i] / values[2 * i + 1] if values[2 * i + 1] else float("nan")
        for i, name in enumerate(task.metrics)
    }
    if not isinstance(task, DerivesMetrics):
        return means
    derived = task.derived_metrics.items()
    return means | {name: function(means[source]) for name, (source, function) in derived}


def metric_names(task: Task) -> list[str]:
    """Return the names of a task's metrics, as `unpack` returns them."""
    return list(unpack(task, [1.0] * 2 * len(task.metrics)))
