"""The names of devices: how they are written, which exist here, and how a CPU is split to rehearse on. No TensorFlow at the top."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainer.errors import ConfigError


def canonical(key: str, names: Sequence[str]) -> list[str]:
    """Gives devices their short names, such as GPU:0 for /gpu:0 or /device:GPU:0.

    Args:
        key: the option's dotted key, for messages.
        names: the devices, as a user writes them.

    Raises:
        ConfigError: there is none, a name is not a device's, or one is there twice.
    """
    if not names:
        raise ConfigError(f"{key} ([]) must name at least one device, such as CPU:0 or GPU:0")
    found: list[str] = []
    for written in names:
        name = written.upper().rpartition("/")[2].removeprefix("DEVICE:")
        if not re.fullmatch(r"[A-Z_]+:\d+", name):
            raise ConfigError(f"{key} ({written}) must be a device, such as CPU:0 or GPU:1")
        if name in found:
            raise ConfigError(f"{key} ({written}) must name each device once")
        found.append(name)
    return found


def present() -> list[str]:
    """Gives the devices of this machine, GPUs first."""
    import tensorflow as tf

    return [f"{kind}:{number}" for kind in ("GPU", "CPU") for number in range(len(tf.config.list_logical_devices(kind)))]


def default() -> list[str]:
    """Gives all GPUs of this machine, or its CPU if there are none; more than one only where it has been split."""
    here = present()
    return [name for name in here if name.startswith("GPU:")] or here


def existing(key: str, names: Sequence[str]) -> list[str]:
    """Gives devices their short names, and makes sure that they exist: TensorFlow itself would silently train on the CPU.

    Raises:
        ConfigError: one does not exist here, or is written wrongly.
    """
    here, wanted = present(), canonical(key, names)
    if missing := [name for name in wanted if name not in here]:
        raise ConfigError(f"{key} ({', '.join(missing)}) does not exist here; choose among {', '.join(here)}")
    return wanted


def virtual(count: int) -> list[str]:
    """Gives the names of the devices that `split_cpu` makes."""
    return [f"CPU:{number}" for number in range(count)]


def split_cpu(count: int) -> list[str]:
    """Splits the CPU into `count` devices; gives their names. Must come before anything else that uses TensorFlow's devices.

    Raises:
        ConfigError: TensorFlow has been used already, so that the CPU can no longer be split.
    """
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        # TensorFlow is in use already, as in a second run of one process; the devices of the first will do.
        if len(tf.config.list_logical_devices("CPU")) < count:
            raise ConfigError(f"strategy.virtual_devices ({count}) must be set before TensorFlow is used") from error
    return virtual(count)


def count_gpus() -> int:
    """Counts the GPUs of this machine."""
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def names() -> list[str]:
    """Gives the full names of this machine's devices, as TensorFlow uses them."""
    import tensorflow as tf

    return [device.name for kind in ("CPU", "GPU", "TPU") for device in tf.config.list_logical_devices(kind)]
