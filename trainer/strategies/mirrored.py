"""Mirrored: a copy of the model on each local device, updated alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.strategies import devices
from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    import tensorflow as tf

_OPS = {"nccl": "NcclAllReduce", "hierarchical_copy": "HierarchicalCopyAllReduce", "reduction_to_one_device": "ReductionToOneDevice"}
_PACKED = ("nccl", "hierarchical_copy")


class Mirrored(Strategy):
    """Trains on all local GPUs, on chosen devices, or on virtual devices of the CPU.

    Args:
        devices: the devices, such as [GPU:0, GPU:1]; None: all GPUs, or the CPU if there are none.
        virtual_devices: split the CPU into so many devices, to rehearse on a machine without GPUs; None: real devices.
        cross_device_ops: how gradients are summed over the devices: auto (NCCL on GPUs, copies on a CPU), one of TensorFlow's by its
            name here, or what makes a `tf.distribute.CrossDeviceOps` of one's own.
        num_packs: into how many packs gradients are put for the sum, 0: none; of nccl and hierarchical_copy. None: TensorFlow's, 1.
    """

    cannot: ClassVar[frozenset[str]] = frozenset({"jit_communication", "accumulate_communication"})

    def __init__(
        self,
        *,
        devices: list[str] | None = None,
        virtual_devices: Annotated[int | None, ">= 1"] = None,
        cross_device_ops: Annotated[str | Callable[[], Any], "auto | nccl | hierarchical_copy | reduction_to_one_device"] = "auto",
        num_packs: Annotated[int | None, ">= 0"] = None,
    ) -> None:
        self._devices, self._virtual_devices = devices, virtual_devices
        self._cross_device_ops, self._num_packs = cross_device_ops, num_packs

    def num_replicas(self) -> int | None:
        """The number of devices; None when it takes TensorFlow to count the GPUs."""
        return len(self._devices) if self._devices is not None else self._virtual_devices

    def check(self, cluster: Cluster) -> None:
        """Refuses options that contradict one another."""
        if self._devices is not None and self._virtual_devices is not None:
            raise ConfigError(
                f"strategy.devices ({', '.join(self._devices)}) and strategy.virtual_devices ({self._virtual_devices}) exclude each other; "
                "set one to null"
            )
        if self._num_packs is not None and self._cross_device_ops not in _PACKED:
            needed = " or ".join(_PACKED)
            raise ConfigError(f"strategy.num_packs ({self._num_packs}) needs strategy.cross_device_ops={needed}; set it to null")
        if self._devices is not None:
            self._check_ops(devices.canonical("strategy.devices", self._devices))
        elif self._virtual_devices is not None:
            self._check_ops(devices.virtual(self._virtual_devices))

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Creates the strategy. Must come before anything else that uses TensorFlow's devices."""
        import tensorflow as tf

        if self._virtual_devices is not None:
            names = devices.split_cpu(self._virtual_devices)
        elif self._devices is not None:
            names = devices.existing("strategy.devices", self._devices)
        else:
            names = devices.default()
        self._check_ops(names)
        return tf.distribute.MirroredStrategy(names, cross_device_ops=self._make_ops(names))

    def _check_ops(self, names: Sequence[str]) -> None:
        """Refuses operations that fail on these devices at the first step, or leave one out."""
        if self._cross_device_ops == "nccl" and not all(name.startswith("GPU:") for name in names):
            raise ConfigError(f"strategy.cross_device_ops (nccl) needs GPUs, and the devices are {', '.join(names)}; use auto")
        # TensorFlow halves the devices into two groups, and with them silently loses the gradient of the odd one.
        if self._cross_device_ops == "hierarchical_copy" and len(names) % 2:
            raise ConfigError(
                f"strategy.cross_device_ops (hierarchical_copy) needs an even number of devices, and there are {len(names)}; "
                "use auto or reduction_to_one_device"
            )

    def _make_ops(self, names: Sequence[str]) -> tf.distribute.CrossDeviceOps | None:
        import tensorflow as tf

        if self._cross_device_ops == "auto":
            if any(name.startswith("GPU:") for name in names):
                return None
            # Within one memory copying is 2 to 5 times as fast as TensorFlow's collectives, which are its default here; and their
            # keys are counted per strategy object but kept per process, so that a second run in one process would fail.
            return tf.distribute.ReductionToOneDevice() if len(names) % 2 else tf.distribute.HierarchicalCopyAllReduce()
        if isinstance(self._cross_device_ops, str):
            packs = {} if self._num_packs is None else {"num_packs": self._num_packs}
            return getattr(tf.distribute, _OPS[self._cross_device_ops])(**packs)
        made = self._cross_device_ops()
        if not isinstance(made, tf.distribute.CrossDeviceOps):
            raise ConfigError(f"strategy.cross_device_ops ({type(made).__name__}) must make a tf.distribute.CrossDeviceOps")
        return made
