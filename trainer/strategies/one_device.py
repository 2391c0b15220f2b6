"""One device: the first GPU if there is one, else the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.cluster import Cluster
from trainer.strategies import devices
from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    import tensorflow as tf


class OneDevice(Strategy):
    """Trains on a single device.

    Args:
        device: the device, such as CPU:0 or GPU:1; None: the first GPU, else the CPU.
    """

    def __init__(self, *, device: str | None = None) -> None:
        self._device = device

    def num_replicas(self) -> int:
        """One, on whatever hardware."""
        return 1

    def check(self, cluster: Cluster) -> None:
        """Refuses what is not a device's name."""
        if self._device is not None:
            devices.canonical("strategy.device", [self._device])

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Creates the strategy."""
        import tensorflow as tf

        name = devices.existing("strategy.device", [self._device])[0] if self._device is not None else devices.default()[0]
        return tf.distribute.OneDeviceStrategy(f"/device:{name}")
