"""Metrics as they leave a replica: the sum and the weight of each, packed into one vector."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.protocols import STATES, Metrics, PerExampleMetrics, Task, TaskDefaults, with_defaults

Sums = dict[str, tuple[tf.Tensor, tf.Tensor]]
"""Name of a metric -> (sum, weight), float32 scalars; of `STATES` a vector and an empty one."""

Sizes = dict[str, tuple[int, int]]
"""Name of a metric -> how many numbers its sum and its weight have."""


def sums_of(losses: tf.Tensor, metrics: PerExampleMetrics, weight: tf.Tensor) -> Sums:
    """Add up the loss and the metrics of each example by their weight, [b] float32 each."""
    total = tf.reduce_sum(weight)

    def add_up(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(x, tf.float32) * weight)

    return {
        name: (add_up(x[0]), add_up(x[1])) if isinstance(x, tuple) else (add_up(x), total)
        for name, x in {"loss": losses, **metrics}.items()
    }


def sizes_of(sums: Metrics) -> Sizes:
    """Return how many numbers each sum and weight has."""
    return {name: (_size(pair[0]), _size(pair[1])) for name, pair in sums.items()}


def flat_sums(sums: Metrics) -> tf.Tensor:
    """Return all sums and weights as one vector, float32."""
    numbers = [number for pair in sums.values() for number in pair]
    if STATES not in sums:
        return tf.stack(numbers)
    return tf.concat([tf.reshape(tf.cast(x, tf.float32), [-1]) for x in numbers], axis=0)


def restored_sums(vector: tf.Tensor, sizes: Sizes) -> Sums:
    """Return the sums of a vector that `flat_sums` has made of such sizes."""
    sums: Sums = {}
    start = 0
    for name, (first, second) in sizes.items():
        middle, end = start + first, start + first + second
        if name == STATES:
            sums[name] = (vector[start:middle], vector[middle:end])
        else:
            sums[name] = (vector[start], vector[middle])
        start = end
    return sums


def _size(x: tf.Tensor) -> int:
    return int(tf.convert_to_tensor(x).shape.num_elements())


def pack(task: Task, metrics: Metrics) -> tf.Tensor:
    """Return (sum, weight) of each of the task's metrics and its states, [num_sums] float32.

    Raises:
        ValueError: the step returned other metrics than the task declares.
    """
    if set(metrics) - {STATES} != set(task.metrics):
        raise ValueError(
            f"{type(task).__name__} declares the metrics {sorted(task.metrics)} "
            f"but its step gave {sorted(metrics)}"
        )
    pairs = tf.stack([tf.cast(x, tf.float32) for name in task.metrics for x in metrics[name]])
    return tf.concat([pairs, metrics[STATES][0]], axis=0) if STATES in metrics else pairs


def num_sums(task: Task) -> int:
    """Return how many numbers `pack` packs."""
    return 2 * len(task.metrics) + with_defaults(task, TaskDefaults).num_states


def unpack(task: Task, sums: Any) -> dict[str, float]:
    """Return the value of each metric from packed sums, and of those that the task derives.

    NaN where the weight is zero.
    """
    values = [float(x) for x in sums[: 2 * len(task.metrics)]]
    metrics = {
        name: values[2 * i] / values[2 * i + 1] if values[2 * i + 1] else float("nan")
        for i, name in enumerate(task.metrics)
    }
    view = with_defaults(task, TaskDefaults)
    if view.num_states:
        metrics = view.reported(metrics, sums[2 * len(task.metrics) :])
    return view.derive_metrics(metrics)


def metric_names(task: Task) -> list[str]:
    """Return the names of all metrics that a task reports."""
    derived = with_defaults(task, TaskDefaults).derived_metrics
    return list(dict.fromkeys([*task.metrics, *derived]))
