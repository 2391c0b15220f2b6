"""Logical devices: the devices of one replica, between which a model is divided.

With `strategy.devices_per_replica=N` a replica has the logical devices 0 to N - 1, as in the
TF-Replicator of Buchlovsky et al. (2019). Its input is on 0, and so is everything that nothing puts
elsewhere. TensorFlow is imported when it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from trainer.errors import ConfigError

SCOPE = "logical_device_"
"""The name scope of what is computed on a logical device begins so, and ends in its number."""


@dataclass(frozen=True)
class DeviceGroups:
    """The devices of each replica of this process.

    Attributes:
        groups: for each replica the names of its logical devices, such as /device:CPU:1.
        placement: regular expression -> logical device, for the paths of layers; or "balanced".
    """

    groups: tuple[tuple[str, ...], ...]
    placement: Mapping[str, int] | str

    @property
    def count(self) -> int:
        """The number of logical devices of a replica."""
        return len(self.groups[0])


_groups: WeakKeyDictionary[Any, DeviceGroups] = WeakKeyDictionary()
_building = threading.local()


def register(strategy: Any, groups: DeviceGroups) -> None:
    """Note the devices of a `tf.distribute.Strategy`'s replicas."""
    _groups[strategy] = groups


def groups_of(strategy: Any) -> DeviceGroups | None:
    """Return the devices of a `tf.distribute.Strategy`'s replicas; None: each has but one."""
    return _groups.get(strategy)


def current_groups() -> DeviceGroups | None:
    """Return the devices of the current strategy's replicas; None: each has but one."""
    import tensorflow as tf

    return _drafted() or groups_of(tf.distribute.get_strategy())


def replica_group() -> tuple[str, ...] | None:
    """Return the devices of the replica that is traced; None: it has but one."""
    import tensorflow as tf

    groups = groups_of(tf.distribute.get_strategy())
    replica = tf.distribute.get_replica_context()
    if groups is None or replica is None:
        return None
    number = tf.get_static_value(replica.replica_id_in_sync_group)
    return groups.groups[int(number) % len(groups.groups)]


def requested_for_variables() -> int | None:
    """Return the logical device around the code that builds a model, or None."""
    return getattr(_building, "index", None)


@contextmanager
def drafting(groups: DeviceGroups) -> Iterator[None]:
    """Build a model for these devices inside, outside their strategy's scope.

    Raises:
        ConfigError: the model's code requests a device that does not exist. Only at the end: Keras
            makes errors of another type of those that are raised within a layer.
    """
    _building.groups = groups
    _building.used = set()
    try:
        yield
    finally:
        _building.groups = None
    for index in sorted(_building.used):
        _check(index, groups)


def _check(index: int, groups: DeviceGroups) -> None:
    if not 0 <= index < groups.count:
        raise ConfigError(
            f"logical_device ({index}) must be from 0 to {groups.count - 1}: "
            f"strategy.devices_per_replica is {groups.count}"
        )


def _drafted() -> DeviceGroups | None:
    return getattr(_building, "groups", None)


@contextmanager
def logical_device(index: int) -> Iterator[None]:
    """Put what is inside on a logical device of the replica: operations, or layers that are made.

    Use it in a model's `call`, in a task's step, or around the code that makes layers and
    variables; it goes before `strategy.placement`. On a replica of one device it changes nothing,
    so the same code runs on any layout.

    Raises:
        ConfigError: the replicas have several devices, and fewer than that.
    """
    import tensorflow as tf

    groups = current_groups()
    if groups is None:
        yield
        return
    if _drafted() is not None:
        _building.used.add(index)
    else:
        _check(index, groups)
    group = replica_group()
    if group is not None:
        # The name shows where the backward pass belongs: gradients are named by their scope.
        with tf.device(group[index]), tf.name_scope(f"{SCOPE}{index}"):
            yield
        return
    outer = requested_for_variables()
    _building.index = index
    try:
        yield
    finally:
        _building.index = outer
