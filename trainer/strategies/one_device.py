"""One device: the first GPU if there is one, else the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from trainer.cluster.spec import Cluster
from trainer.strategies import compatibility, devices
from trainer.strategies.strategy import Strategy

if TYPE_CHECKING:
    import tensorflow as tf


class OneDevice(Strategy):
    """Trains on a single device.

    Args:
        device: the device, such as CPU:0 or GPU:1; None: the first GPU, else the CPU.
    """

    unsupported: ClassVar[Mapping[str, str]] = compatibility.NO_AUDIT

    def __init__(self, *, device: str | None = None) -> None:
        self._device = device

    def num_replicas(self) -> int:
        return 1

    def check(self, cluster: Cluster) -> None:
        if self._device is not None:
            devices.canonical("strategy.device", [self._device])

    def create(self, cluster: Cluster) -> tf.distribute.Strategy:
        import tensorflow as tf

        if self._device is None:
            name = devices.default()[0]
        else:
            (name,) = devices.existing("strategy.device", [self._device])
        return tf.distribute.OneDeviceStrategy(f"/device:{name}")
