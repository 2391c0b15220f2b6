"""TensorFlow's profiler for a window of steps, and the memory of this process."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.config.schema import Profile
from trainer.text import first_line

_MIB = 2**20


class Profiler:
    """Records the steps of a window, if the training starts before it.

    Args:
        folder: the folder of events; TensorBoard's plugin reads `plugins/profile` in it.
    """

    def __init__(self, config: Profile, folder: Path, channel: Channel) -> None:
        self._start = config.start
        self._steps = config.steps
        self._folder = folder
        self._channel = channel
        self._is_recording = False

    def before(self, step: int) -> None:
        """Start recording if the window starts after `step` updates."""
        if step == self._start and not self._is_recording:
            try:
                tf.profiler.experimental.start(str(self._folder))
                self._is_recording = True
            except Exception as error:
                self._warn(error)

    def after(self, step: int) -> None:
        """Write the recording if the window ends after `step` updates."""
        if self._start is not None and step >= self._start + self._steps:
            self.close()

    def close(self) -> None:
        """Write what has been recorded, if anything."""
        if not self._is_recording:
            return
        self._is_recording = False
        try:
            tf.profiler.experimental.stop()
            folder = self._folder / "plugins" / "profile"
            self._channel.line(f"The profile from step {self._start} on is in {folder}.")
            if importlib.util.find_spec("tensorboard_plugin_profile") is None:
                self._channel.line(
                    "TensorBoard shows a profile with a plugin, which is not installed: "
                    "pip install tensorboard-plugin-profile"
                )
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        self._channel.line(f"warning: the profiler failed: {first_line(error)}")


def boundary_steps(config: Profile) -> frozenset[int]:
    """Return the steps at which a graph call must end for an exact window."""
    if config.start is None:
        return frozenset()
    return frozenset({config.start, config.start + config.steps})


def resource_metrics() -> dict[str, float]:
    """Return `memory_mib`, resident now, and `gpu_memory_peak_mib` of the fullest GPU."""
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
