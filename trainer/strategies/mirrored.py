"""Mirrored: a copy of the model on each local device, updated alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from trainer.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf


class Mirrored:
    """Trains on all local GPUs, or on virtual devices of the CPU.

    Args:
        virtual_devices: split the CPU into so many devices, to rehearse on a machine without GPUs; None: use the GPUs.
    """

    def __init__(self, *, virtual_devices: Annotated[int | None, ">= 1"] = None) -> None:
        self.virtual_devices = virtual_devices

    def num_replicas(self) -> int | None:
        """The number of virtual devices; None when it takes TensorFlow to count the GPUs."""
        return self.virtual_devices

    def start(self) -> tf.distribute.Strategy:
        """Creates the strategy. Must come before anything else that uses TensorFlow's devices.

        Raises:
            ConfigError: TensorFlow has been used already, so that the CPU can no longer be split.
        """
        import tensorflow as tf

        if self.virtual_devices is None:
            return tf.distribute.MirroredStrategy()
        cpu = tf.config.list_physical_devices("CPU")[0]
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * self.virtual_devices)
        except RuntimeError as error:
            raise ConfigError(f"strategy.virtual_devices ({self.virtual_devices}) must be set up before TensorFlow is used: {error}") from error
        return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(self.virtual_devices)])
