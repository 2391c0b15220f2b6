"""Mirrored: a copy of the model on each local device, updated alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    import tensorflow as tf


class Mirrored(Strategy):
    """Trains on all local GPUs, or on virtual devices of the CPU.

    Args:
        virtual_devices: split the CPU into so many devices, to rehearse on a machine without GPUs; None: use the GPUs.
    """

    def __init__(self, *, virtual_devices: Annotated[int | None, ">= 1"] = None) -> None:
        self.virtual_devices = virtual_devices

    def num_replicas(self) -> int | None:
        """The number of virtual devices; None when it takes TensorFlow to count the GPUs."""
        return self.virtual_devices

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
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
            # TensorFlow is in use already, as in a second run of one process; the devices of the first will do.
            if len(tf.config.list_logical_devices("CPU")) < self.virtual_devices:
                raise ConfigError(f"strategy.virtual_devices ({self.virtual_devices}) must be set before TensorFlow is used") from error
        # Within one memory copying is 2 to 5 times as fast as TensorFlow's collectives, which are its default here; and their
        # keys are counted per strategy object but kept per process, so that a second run in one process would fail.
        copying = tf.distribute.HierarchicalCopyAllReduce()
        return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(self.virtual_devices)], cross_device_ops=copying)
