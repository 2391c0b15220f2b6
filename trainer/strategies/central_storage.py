"""Central storage: one copy of the variables, on the CPU; every GPU computes with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from trainer.annotations import Ge, Le
from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.strategies import compatibility, devices
from trainer.strategies.strategy import Refusals, Strategy

if TYPE_CHECKING:
    import tensorflow as tf


class CentralStorage(Strategy):
    """Trains on all local GPUs with the variables in one place.

    It is for a model whose variables do not fit onto each GPU. All variables are copied to every
    device in every step.

    Args:
        compute_devices: the devices that compute, a replica each; None: all GPUs, or the CPU as one
            replica if there are none.
        parameter_device: the device that keeps the variables; None: the CPU, or the only device
            that computes.
        virtual_devices: split the CPU into so many devices that compute, to try several replicas on
            a machine without GPUs; None: real devices.
    """

    unsupported: ClassVar[Mapping[str, str]] = compatibility.NO_AUDIT
    optimizer_reduces: ClassVar[bool] = True

    def __init__(
        self,
        *,
        compute_devices: list[str] | None = None,
        parameter_device: str | None = None,
        virtual_devices: Annotated[int | None, Ge(1), Le(1024)] = None,
    ) -> None:
        self._compute_devices = compute_devices
        self._parameter_device = parameter_device
        self._virtual_devices = virtual_devices
        self.parameters_apart = f"on {parameter_device or 'the CPU'}, once"

    def num_replicas(self) -> int | None:
        if self._compute_devices is not None:
            return len(self._compute_devices)
        return self._virtual_devices

    def check(self, cluster: Cluster) -> None:
        if self._compute_devices is not None and self._virtual_devices is not None:
            raise ConfigError(
                f"strategy.compute_devices ({', '.join(self._compute_devices)}) and "
                f"strategy.virtual_devices ({self._virtual_devices}) exclude each other; "
                "set one to null"
            )
        if self._compute_devices is not None:
            devices.canonical("strategy.compute_devices", self._compute_devices)
        if self._parameter_device is not None:
            devices.canonical("strategy.parameter_device", [self._parameter_device])

    def refused(self, experiment: Experiment, models: Collection[tf.keras.Model]) -> Refusals:
        yield from compatibility.one_copy(experiment, models)

    def traffic(
        self, gradients: float, weights: float, num_replicas: int, *, in_tree: bool
    ) -> tuple[float, str]:
        """Return the size of the variables and of the gradient: both pass the link to the CPU."""
        return gradients + weights, "the variables to the device that computes, and its gradient"

    def create(self, cluster: Cluster) -> tf.distribute.Strategy:
        import tensorflow as tf

        compute = self._compute_devices
        if self._virtual_devices is not None:
            compute = devices.split_cpu(self._virtual_devices)
        elif compute is not None:
            compute = devices.existing("strategy.compute_devices", compute)
        parameters = self._parameter_device
        if parameters is not None:
            parameters = f"/device:{devices.existing('strategy.parameter_device', [parameters])[0]}"
        strategy = tf.distribute.experimental.CentralStorageStrategy(compute, parameters)
        if strategy.num_replicas_in_sync > 1:
            self.communication = "reduction to one device"
        return strategy
