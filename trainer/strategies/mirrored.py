"""Mirrored: a replica of the model on each local device, with equal updates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from trainer.annotations import Ge, Le, OneOf
from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.logical_devices import register
from trainer.strategies import compatibility, devices
from trainer.strategies.strategy import Refusals, Strategy
from trainer.text import format_bytes

if TYPE_CHECKING:
    import tensorflow as tf

_OPS = {
    "nccl": "NcclAllReduce",
    "hierarchical_copy": "HierarchicalCopyAllReduce",
    "reduction_to_one_device": "ReductionToOneDevice",
}
_TEXTS = {
    "NcclAllReduce": "NCCL",
    "HierarchicalCopyAllReduce": "hierarchical copy",
    "ReductionToOneDevice": "reduction to one device",
}
_PACKED = ("nccl", "hierarchical_copy")


class Mirrored(Strategy):
    """Trains on all local GPUs, on chosen devices, or on virtual devices of the CPU.

    Args:
        devices: the devices, such as [GPU:0, GPU:1]; None: all GPUs, or the CPU if there are none.
        virtual_devices: split the CPU into so many devices, to try several replicas on a machine
            without GPUs; None: real devices.
        cross_device_ops: how gradients are summed over the devices: auto (NCCL on GPUs, copies on a
            CPU), one of TensorFlow's by its name here, or a function that returns a
            `tf.distribute.CrossDeviceOps`.
        num_packs: into how many packs gradients are put for the sum, 0: none; for nccl and
            hierarchical_copy. None: TensorFlow's default, 1.
        devices_per_replica: divide the model of each replica between so many of the devices.
        placement: which layers are on which of them: a mapping of regular expressions, matched with
            the layers' paths, to the devices' numbers from 0; or balanced, by their weights.
    """

    def __init__(
        self,
        *,
        devices: list[str] | None = None,
        virtual_devices: Annotated[int | None, Ge(1), Le(1024)] = None,
        cross_device_ops: Annotated[
            str | Callable[[], Any],
            OneOf("auto", "nccl", "hierarchical_copy", "reduction_to_one_device"),
        ] = "auto",
        num_packs: Annotated[int | None, Ge(0)] = None,
        devices_per_replica: Annotated[int, Ge(1), Le(1024)] = 1,
        placement: Literal["balanced"] | dict[str, int] = "balanced",
    ) -> None:
        self._devices = devices
        self._virtual_devices = virtual_devices
        self._cross_device_ops = cross_device_ops
        self._num_packs = num_packs
        self.devices_per_replica = devices_per_replica
        self._placement = placement

    def num_replicas(self) -> int | None:
        if self._devices is not None:
            return self._count("strategy.devices", len(self._devices))
        if self._virtual_devices is not None:
            return self._count("strategy.virtual_devices", self._virtual_devices)
        return None

    def check(self, cluster: Cluster) -> None:
        if self._devices is not None and self._virtual_devices is not None:
            raise ConfigError(
                f"strategy.devices ({', '.join(self._devices)}) and strategy.virtual_devices "
                f"({self._virtual_devices}) exclude each other; set one to null"
            )
        if self._num_packs is not None and self._cross_device_ops not in _PACKED:
            packed = " or ".join(_PACKED)
            raise ConfigError(
                f"strategy.num_packs ({self._num_packs}) needs "
                f"strategy.cross_device_ops={packed}; set it to null"
            )
        devices.check_placement(self.devices_per_replica, self._placement)
        self.num_replicas()
        if self._devices is not None:
            self._check_ops(devices.canonical("strategy.devices", self._devices))
        elif self._virtual_devices is not None:
            self._check_ops(devices.virtual(self._virtual_devices))

    def refused(self, experiment: Experiment, models: Collection[tf.keras.Model]) -> Refusals:
        yield from compatibility.no_jit_of_communication(experiment, models)

    def traffic(
        self, gradients: float, weights: float, num_replicas: int, *, in_tree: bool
    ) -> tuple[float, str]:
        """Return the gradient's size where one device adds up for all: all others' pass it."""
        if self._cross_device_ops != "reduction_to_one_device":
            return super().traffic(gradients, weights, num_replicas, in_tree=in_tree)
        root = format_bytes(2 * (num_replicas - 1) * gradients)
        return gradients, f"the gradient to one device, 2 (n - 1) of its size ({root}) there"

    def create(self, cluster: Cluster) -> tf.distribute.Strategy:
        import tensorflow as tf

        if self._virtual_devices is not None:
            names = devices.split_cpu(self._virtual_devices)
        elif self._devices is not None:
            names = devices.existing("strategy.devices", self._devices)
        else:
            names = devices.default()
        self._check_ops(names)
        self._count("number of devices", len(names))
        firsts = names[:: self.devices_per_replica]
        cross_device_ops = self._create_ops(firsts)
        if len(firsts) > 1:
            self.communication = _communication_text(cross_device_ops, firsts)
        strategy = tf.distribute.MirroredStrategy(firsts, cross_device_ops=cross_device_ops)
        if self.devices_per_replica > 1:
            groups = devices.device_groups(names, self.devices_per_replica, self._placement)
            register(strategy, groups)
        return strategy

    def _count(self, key: str, num_devices: int) -> int:
        return devices.num_replicas(key, num_devices, self.devices_per_replica)

    def _check_ops(self, names: Sequence[str]) -> None:
        """Refuse operations that fail on these devices at the first step, or leave one out."""
        if self._cross_device_ops == "nccl" and not all(name.startswith("GPU:") for name in names):
            raise ConfigError(
                "strategy.cross_device_ops (nccl) needs GPUs, and the devices are "
                f"{', '.join(names)}; use auto"
            )
        if self._cross_device_ops == "nccl" and self.devices_per_replica > 1:
            raise ConfigError(
                "strategy.cross_device_ops (nccl) adds up on the first device of each replica, and "
                f"strategy.devices_per_replica is {self.devices_per_replica}; use auto"
            )
        # TensorFlow halves the devices into two groups, and silently loses the odd one's gradient.
        num_replicas = len(names) // self.devices_per_replica
        if self._cross_device_ops == "hierarchical_copy" and num_replicas % 2:
            each = "replicas" if self.devices_per_replica > 1 else "devices"
            raise ConfigError(
                f"strategy.cross_device_ops (hierarchical_copy) needs an even number of {each}, "
                f"and there are {num_replicas}; use auto or reduction_to_one_device"
            )

    def _create_ops(self, names: Sequence[str]) -> tf.distribute.CrossDeviceOps | None:
        import tensorflow as tf

        if self._cross_device_ops == "auto":
            is_single = self.devices_per_replica == 1
            if is_single and any(name.startswith("GPU:") for name in names):
                return None
            # On a CPU, TensorFlow's default is collectives. Copies within one memory are 2 to 5
            # times as fast. And collective keys are counted per strategy but kept per process, so a
            # second run in one process would fail.
            if len(names) % 2:
                return tf.distribute.ReductionToOneDevice()
            return tf.distribute.HierarchicalCopyAllReduce()
        if isinstance(self._cross_device_ops, str):
            packs = {} if self._num_packs is None else {"num_packs": self._num_packs}
            return getattr(tf.distribute, _OPS[self._cross_device_ops])(**packs)
        custom_ops = self._cross_device_ops()
        if not isinstance(custom_ops, tf.distribute.CrossDeviceOps):
            raise ConfigError(
                f"strategy.cross_device_ops ({type(custom_ops).__name__}) must make a "
                "tf.distribute.CrossDeviceOps"
            )
        return custom_ops


def _communication_text(
    cross_device_ops: tf.distribute.CrossDeviceOps | None, names: Sequence[str]
) -> str:
    """Return how gradients are summed, in the words of the option's values."""
    if cross_device_ops is None:
        # TensorFlow's default for GPUs, unless a CPU is among the devices.
        is_mixed = not all(name.startswith("GPU:") for name in names)
        return "reduction to one device" if is_mixed else "NCCL"
    kind = type(cross_device_ops).__name__
    return _TEXTS.get(kind, kind)
