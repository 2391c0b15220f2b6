"""How much memory this process has, of the host and of its GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf

_MIB = 2**20


def figures() -> dict[str, float]:
    """Gives `memory_mib`, what is resident now, and `gpu_memory_peak_mib`, the most that one GPU held; each where it can be known."""
    found = {}
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        found["memory_mib"] = pages * os.sysconf("SC_PAGE_SIZE") / _MIB
    except OSError:
        pass  # no Linux
    gpus = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")]
    if gpus:
        found["gpu_memory_peak_mib"] = max(tf.config.experimental.get_memory_info(gpu)["peak"] for gpu in gpus) / _MIB
    return found
