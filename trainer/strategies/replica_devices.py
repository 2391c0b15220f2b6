"""Several devices for each replica: their options, checked, and which device belongs to whom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trainer.config.options.constraints import format_value
from trainer.errors import ConfigError
from trainer.logical_devices import DeviceGroups


def check_options(devices_per_replica: int, placement: Mapping[str, int] | str) -> None:
    """Check what can be known of a placement without the model.

    Args:
        devices_per_replica: number of logical devices.
        placement: regular expression -> logical device; or "balanced".

    Raises:
        ConfigError: a pattern or a number is wrong.
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

    Args:
        key: the option that says how many devices there are, for the message.
        num_devices: number of devices.
        devices_per_replica: number of devices of each replica.

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
