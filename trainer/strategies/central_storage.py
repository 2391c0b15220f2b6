"""Central storage: one copy of the variables, on the CPU; every GPU computes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.strategies import devices
from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    import tensorflow as tf


class CentralStorage(Strategy):
    """Trains on all local GPUs with the variables in one place: for a model whose variables do not fit onto each GPU.

    All variables travel to every device in every step.

    Args:
        compute_devices: the devices that compute, a replica each; None: all GPUs, or the CPU if there are none: one replica.
        parameter_device: the device that keeps the variables; None: the CPU, or the only device that computes.
        virtual_devices: split the CPU into so many devices that compute, to rehearse on a machine without GPUs; None: real devices.
    """

    cannot: ClassVar[frozenset[str]] = frozenset({"loss_scaling", "jit", "accumulate_statistics"})
    optimizer_reduces: ClassVar[bool] = True

    def __init__(
        self,
        *,
        compute_devices: list[str] | None = None,
        parameter_device: str | None = None,
        virtual_devices: Annotated[int | None, ">= 1"] = None,
    ) -> None:
        self._compute_devices, self._parameter_device, self._virtual_devices = compute_devices, parameter_device, virtual_devices

    def num_replicas(self) -> int | None:
        """The number of devices that compute; None when it takes TensorFlow to count the GPUs."""
        return len(self._compute_devices) if self._compute_devices is not None else self._virtual_devices

    def check(self, cluster: Cluster) -> None:
        """Refuses options that contradict one another."""
        if self._compute_devices is not None and self._virtual_devices is not None:
            raise ConfigError(
                f"strategy.compute_devices ({', '.join(self._compute_devices)}) and strategy.virtual_devices ({self._virtual_devices}) "
                "exclude each other; set one to null"
            )
        if self._compute_devices is not None:
            devices.canonical("strategy.compute_devices", self._compute_devices)
        if self._parameter_device is not None:
            devices.canonical("strategy.parameter_device", [self._parameter_device])

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Creates the strategy. Must come before anything else that uses TensorFlow's devices."""
        import tensorflow as tf

        compute = self._compute_devices
        if self._virtual_devices is not None:
            compute = devices.split_cpu(self._virtual_devices)
        elif compute is not None:
            compute = devices.existing("strategy.compute_devices", compute)
        parameters = self._parameter_device
        if parameters is not None:
            parameters = f"/device:{devices.existing('strategy.parameter_device', [parameters])[0]}"
        return tf.distribute.experimental.CentralStorageStrategy(compute, parameters)
