"""A window of steps that TensorFlow's profiler records. What goes wrong with it is a warning: the training is worth more."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from trainer.channel import Channel
from trainer.schema import Profile


class Profiler:
    """Records the steps of a window, if training comes to its first one.

    Args:
        config: the window.
        folder: the folder of events in whose `plugins/profile` TensorBoard's plugin looks.
        channel: is told where the recording is.
    """

    def __init__(self, config: Profile, folder: Path, channel: Channel) -> None:
        self._start, self._steps, self._folder, self._channel = config.start, config.steps, folder, channel
        self._records = False

    def before(self, step: int) -> None:
        """Begins to record if the window begins after `step` updates."""
        if step == self._start and not self._records:
            try:
                tf.profiler.experimental.start(str(self._folder))
                self._records = True
            except Exception as error:
                self._failed(error)

    def after(self, step: int) -> None:
        """Writes the recording if the window ends after `step` updates."""
        if self._start is not None and step >= self._start + self._steps:
            self.close()

    def close(self) -> None:
        """Writes what has been recorded, if anything."""
        if not self._records:
            return
        self._records = False
        try:
            tf.profiler.experimental.stop()
            self._channel.line(f"The profile from step {self._start} on is in {self._folder / 'plugins' / 'profile'}.")
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._channel.line(f"warning: the profiler failed: {str(error).strip().splitlines()[0]}")


def borders(config: Profile) -> frozenset[int]:
    """Gives the steps at which a graph call has to end for the window to be exact."""
    return frozenset() if config.start is None else frozenset({config.start, config.start + config.steps})
