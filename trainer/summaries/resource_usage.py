"""Memory of this process, on the host and on its GPUs."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import tensorflow as tf

_MIB = 2**20
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere


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


def peak_memory_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT / _MIB
