"""Metrics as they leave a replica: the sum and the weight of each, packed into one vector."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.protocols import Metrics, PerExampleMetrics, Task, TaskDefaults, with_defaults

Sums = dict[str, tuple[tf.Tensor, tf.Tensor]]
"""Name of a metric -> (sum, weight), float32 scalars."""


def sums_of(losses: tf.Tensor, metrics: PerExampleMetrics, weight: tf.Tensor) -> Sums:
    """Add up the loss and the metrics of each example, weighted.

    Args:
        losses: the loss of each example, [b].
        metrics: name -> the metric of each example, [b]; or its sum and weight, [b] each.
        weight: the weight of each example, [b] float32.
    """
    total = tf.reduce_sum(weight)

    def add_up(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(x, tf.float32) * weight)

    return {
        name: (add_up(x[0]), add_up(x[1])) if isinstance(x, tuple) else (add_up(x), total)
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
    """Return the value of each metric from packed sums, and of those that the task derives.

    NaN where the weight is zero.
    """
    values = [float(x) for x in sums]
    metrics = {
        name: values[2 * i] / values[2 * i + 1] if values[2 * i + 1] else float("nan")
        for i, name in enumerate(task.metrics)
    }
    return with_defaults(task, TaskDefaults).derive_metrics(metrics)


def metric_names(task: Task) -> list[str]:
    """Return the names of all metrics that a task reports."""
    return [*task.metrics, *with_defaults(task, TaskDefaults).derived_metrics]
