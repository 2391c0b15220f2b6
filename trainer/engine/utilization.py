"""Model FLOPs utilization: what a step computes, of what the devices could in the same time.

The count is that of `trainer.summaries.flops`, for all replicas of this process. The peak is
measured: products of large matrices, on all of its devices at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import tensorflow as tf

from trainer.config.schema import Experiment
from trainer.logical_devices import groups_of
from trainer.summaries.flops import count_flops

_SIZES = (1024, 2048, 4096, 8192)
_LONG_SECS = 0.05
_PRODUCTS = 4  # in a row, so that starting them costs little
_TRIES = 6


class Utilization:
    """Compares the speed of training with the peak of this process's devices.

    Args:
        devices: the devices of all replicas of this process.
        dtype: what the step computes with.
    """

    def __init__(self, devices: Sequence[str], dtype: tf.DType) -> None:
        self._peak = measured_peak(devices, dtype)
        self._flops = 0.0

    def traced(self, graph: tf.Graph) -> None:
        """Count the operations of a step that has been traced in a graph."""
        self._flops = count_flops(graph)

    def scalars(self, steps_per_sec: float) -> dict[str, float]:
        """Return `mfu`, from 0 to 1; nothing for a step in which nothing counts."""
        if not self._flops:
            return {}
        speed = steps_per_sec * self._flops
        # Other processes may have disturbed the measurement: the peak is no less than what is seen.
        self._peak = max(self._peak, speed)
        return {"mfu": speed / self._peak}


def make_utilization(
    experiment: Experiment, strategy: tf.distribute.Strategy
) -> Utilization | None:
    """Measure the peak of this process's devices, if `summary.mfu` asks for it."""
    if not (experiment.summary.mfu and experiment.trains):
        return None
    groups = groups_of(strategy)
    devices = (
        [device for group in groups.groups for device in group]
        if groups
        else strategy.extended.worker_devices
    )
    return Utilization(devices, tf.as_dtype(experiment.precision.removeprefix("mixed_")))


def measured_peak(devices: Sequence[str], dtype: tf.DType) -> float:
    """Return the operations a second of large matrix products on all devices at once."""
    for size in _SIZES:
        secs = _product_secs(devices, dtype, size)
        if secs > _LONG_SECS:
            break
    return len(devices) * _PRODUCTS * 2.0 * size**3 / secs


def _product_secs(devices: Sequence[str], dtype: tf.DType, size: int) -> float:
    """Return the seconds that the products of matrices of a size take, the least of several."""

    @tf.function(autograph=False)
    def multiply(*matrices: tf.Tensor) -> list[tf.Tensor]:
        results = []
        for device, matrix in zip(devices, matrices, strict=True):
            with tf.device(device):
                product = matrix
                for _ in range(_PRODUCTS):
                    product = tf.matmul(product, matrix)
                results.append(product[0, 0])
        return results

    matrices = []
    for device in devices:
        with tf.device(device):
            matrices.append(tf.fill([size, size], tf.cast(1 / size, dtype)))
    durations = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        for result in multiply(*matrices):
            result.numpy()
        durations.append(time.perf_counter() - began)
    return min(durations)  # the first one is mostly compilation, and others may be disturbed
