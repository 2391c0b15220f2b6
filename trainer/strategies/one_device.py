"""One device: the first GPU if there is one, else the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    import tensorflow as tf


class OneDevice(Strategy):
    """Trains on a single device.

    Args:
        device: the device, such as CPU:0 or GPU:1; None: the first GPU, else the CPU.
    """

    def __init__(self, *, device: str | None = None) -> None:
        self.device = device

    def num_replicas(self) -> int:
        """One, on whatever hardware."""
        return 1

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Creates the strategy.

        Raises:
            ConfigError: the device does not exist. TensorFlow itself would silently train on the CPU.
        """
        import tensorflow as tf

        present = [
            f"{device.device_type}:{number}"
            for kind in ("GPU", "CPU")
            for number, device in enumerate(tf.config.list_logical_devices(kind))
        ]
        wanted = (self.device or present[0]).upper().lstrip("/").removeprefix("DEVICE:")
        if wanted not in present:
            raise ConfigError(f"strategy.device ({self.device}) does not exist here; choose one of {', '.join(present)}")
        return tf.distribute.OneDeviceStrategy(f"/device:{wanted}")
