"""Devices: their names, which of them this machine has, and which belong to one replica."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from trainer.config.options.constraints import format_value
from trainer.errors import ConfigError
from trainer.logical_devices import DeviceGroups

if TYPE_CHECKING:
    import tensorflow as tf


def canonical(key: str, names: Sequence[str]) -> list[str]:
    """Return the short names of devices, such as GPU:0 for /gpu:0 or /device:GPU:0.

    Raises:
        ConfigError: there is no device, a name is not a device's, or one is listed twice.
    """
    if not names:
        raise ConfigError(f"{key} ([]) must name at least one device, such as CPU:0 or GPU:0")
    short_names: list[str] = []
    for written in names:
        name = written.upper().rpartition("/")[2].removeprefix("DEVICE:")
        if not re.fullmatch(r"[A-Z_]+:\d+", name):
            raise ConfigError(f"{key} ({written}) must be a device, such as CPU:0 or GPU:1")
        if name in short_names:
            raise ConfigError(f"{key} ({written}) must name each device once")
        short_names.append(name)
    return short_names


def present() -> list[str]:
    """Return the devices of this machine that are visible, GPUs first."""
    import tensorflow as tf

    return [
        f"{kind}:{number}"
        for kind in ("GPU", "CPU")
        for number in range(len(tf.config.list_logical_devices(kind)))
    ]


def default() -> list[str]:
    """Return all GPUs, or the CPU if there are none; several where it has been split."""
    names = present()
    return [name for name in names if name.startswith("GPU:")] or names


def existing(key: str, names: Sequence[str]) -> list[str]:
    """Return the short names of devices, which must exist, or TensorFlow would use the CPU."""
    choices = present()
    short_names = canonical(key, names)
    if missing := [name for name in short_names if name not in choices]:
        raise ConfigError(
            f"{key} ({', '.join(missing)}) does not exist here; choose among {', '.join(choices)}"
        )
    return short_names


def virtual(count: int) -> list[str]:
    """Return the names of the devices that `split_cpu` creates."""
    return [f"CPU:{number}" for number in range(count)]


def split_cpu(count: int) -> list[str]:
    """Split the CPU into `count` devices and return their names.

    Must come before anything else that uses TensorFlow's devices.

    Raises:
        ConfigError: TensorFlow is in use already, so the CPU can no longer be split.
    """
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        # A second run in one process may use the devices of the first.
        if len(tf.config.list_logical_devices("CPU")) < count:
            raise ConfigError(
                f"strategy.virtual_devices ({count}) must be set before TensorFlow is used"
            ) from error
    return virtual(count)


def limit_gpus(count: int | None) -> None:
    """Use the first `count` GPUs of this machine; None: all. Must come before their first use.

    Raises:
        ConfigError: there are fewer, or TensorFlow already uses others.
    """
    import tensorflow as tf

    if count is None:
        return
    gpus = tf.config.list_physical_devices("GPU")
    if count > len(gpus):
        raise ConfigError(
            f"devices.gpus ({count}) must be at most the number of GPUs ({len(gpus)})"
        )
    try:
        tf.config.set_visible_devices(gpus[:count], "GPU")
    except RuntimeError as error:
        raise ConfigError(
            f"devices.gpus ({count}) must be set before TensorFlow is used"
        ) from error


def set_threads(count: int | None) -> None:
    """Divide operations on the CPU into `count` threads; None: TensorFlow's default.

    Must come before the first use of a device. A second run in one process has the threads of the
    first.
    """
    import tensorflow as tf

    if count is not None:
        with suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(count)


def visible_gpus() -> list[tf.config.PhysicalDevice]:
    """Return the GPUs that this process may use."""
    import tensorflow as tf

    return list(tf.config.get_visible_devices("GPU"))


def count_gpus() -> int:
    """Return the number of GPUs that this process may use."""
    return len(visible_gpus())


def names() -> list[str]:
    """Return the full names of this machine's devices, as TensorFlow uses them."""
    import tensorflow as tf

    return [
        device.name
        for kind in ("CPU", "GPU", "TPU")
        for device in tf.config.list_logical_devices(kind)
    ]


def check_placement(devices_per_replica: int, placement: Mapping[str, int] | str) -> None:
    """Check a placement as far as possible without the model.

    Args:
        placement: regular expression -> logical device; or "balanced".
    """
    if isinstance(placement, str):
        return
    problems = []
    for pattern, index in placement.items():
        try:
            re.compile(pattern)
        except re.error as error:
            problems.append(f"strategy.placement ({pattern}) must be a regular expression: {error}")
        if type(index) is not int or not 0 <= index < devices_per_replica:
            problems.append(
                f"strategy.placement ({pattern}: {format_value(index)}) must be a logical device, "
                f"from 0 to {devices_per_replica - 1}, as strategy.devices_per_replica is "
                f"{devices_per_replica}"
            )
    if problems:
        raise ConfigError(*problems)


def num_replicas(key: str, num_devices: int, devices_per_replica: int) -> int:
    """Return how many replicas so many devices make.

    Raises:
        ConfigError: some devices would be left over.
    """
    if num_devices % devices_per_replica:
        raise ConfigError(
            f"{key} ({num_devices}) must be a multiple of strategy.devices_per_replica "
            f"({devices_per_replica})"
        )
    return num_devices // devices_per_replica


def device_groups(
    names: Sequence[str], devices_per_replica: int, placement: Mapping[str, int] | str
) -> DeviceGroups:
    """Return the devices of each replica: neighbors in the list belong together."""
    groups = [
        tuple(f"/device:{name}" for name in names[first : first + devices_per_replica])
        for first in range(0, len(names), devices_per_replica)
    ]
    return DeviceGroups(tuple(groups), placement)
