"""Memory of this process, on the host and on its GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf

_MIB = 2**20


def resource_metrics() -> dict[str, float]:
    """Return the memory in MiB, as far as it is known.

    Returns:
        `memory_mib`: resident now. `gpu_memory_peak_mib`: peak of the GPU that used most.
    """
    metrics = {}
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        metrics["memory_mib"] = pages * os.sysconf("SC_PAGE_SIZE") / _MIB
    except OSError:
        pass  # not Linux
    gpus = [
        device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")
    ]
    if gpus:
        metrics["gpu_memory_peak_mib"] = (
            max(tf.config.experimental.get_memory_info(gpu)["peak"] for gpu in gpus) / _MIB
        )
    return metrics
