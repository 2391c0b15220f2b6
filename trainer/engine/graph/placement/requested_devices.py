"""Devices that a model requests for itself: refused unless they are its replica's own.

A `tf.device` in a model would either be ignored, where a layer is made under it, or would compute a
part of every replica on one and the same device. `trainer.logical_devices` is for parts of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from trainer.engine.graph.checks.traced_operations import called_functions
from trainer.engine.graph.placement.step_devices import device_key, group_with
from trainer.errors import ConfigError

_KINDS = ("CPU", "GPU")
_HOST = ("CPU", 0)  # always allowed: lookups and decoding exist only there


@contextmanager
def no_devices_for_variables() -> Iterator[None]:
    """Refuse variables that are made under a `tf.device`; entered in `strategy.scope()`.

    Raises:
        ConfigError: a variable is made under another device than the strategy's own.
    """
    own = context.context().device_name

    def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        requested = context.context().device_name
        if requested != own:
            _refuse(f"variable {options.get('name') or ''}".rstrip(), requested, own)
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def check_operations(operations: Sequence[tf.Operation], *, compiled: bool) -> None:
    """Refuse operations that request a device of their own, also those within functions.

    An operation knows the device scopes that it was made under, the outermost last: the strategy's
    for its replica, or for a variable that it keeps elsewhere. Further ones are the model's. In a
    function that XLA compiles TensorFlow leaves out the scopes around it: all of them are the
    model's. What is colocated with a variable was made under none.

    Args:
        operations: what the forward pass of a replica added to the graph, in replica context. It
            may hold operations of other replicas, which are traced in turn.
        compiled: whether they are within a function that XLA compiles.

    Raises:
        ConfigError: an operation requests a device that is neither its replica's nor the host.
    """
    replica = _replica_device()
    for operation in operations:
        scopes = [scope.obj for scope in operation._device_assignments]
        own = replica if compiled or not scopes else scopes[-1]
        if len(scopes) > (0 if compiled else 1):
            _refuse(f"operation {operation.name}", operation.device, own)
        for node in _nodes_within(operation):
            _refuse(f"operation {node.name}", node.device, operation.device or own)


def _replica_device() -> str | None:
    # Not ReplicaContext.devices: in a cluster it looks up all replicas among this worker's own.
    replica = tf.distribute.get_replica_context()
    devices = replica.strategy.extended.worker_devices
    number = tf.get_static_value(replica.replica_id_in_sync_group)
    return devices[int(number) % len(devices)] if devices and number is not None else None


def _nodes_within(operation: tf.Operation) -> Iterator[Any]:
    """Return the nodes of all functions that an operation calls, and of those that they call."""
    pending = [(operation.graph, item.name) for item in called_functions(operation.node_def)]
    visited = set()
    while pending:
        graph, name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        function = graph._get_function(name)
        if function is None:
            continue
        for node in function.cached_definition.node_def:
            yield node
            pending += [(function.graph, item.name) for item in called_functions(node)]


def _refuse(part: str, requested: str | None, own: str | None) -> None:
    """Raise a ConfigError if a part of a model requests a device that is not its replica's."""
    kind, index = device_key(requested)
    if kind not in _KINDS:
        return
    allowed = (_HOST, device_key(own), *map(device_key, group_with(own) or ()))
    if any(kind == other and index in (None, number) for other, number in allowed):
        return
    name = kind if index is None else f"{kind}:{index}"
    raise ConfigError(
        f"model: {part} requests the device {name}, but every replica computes the whole model on "
        "its own device; remove tf.device from the model, or divide the model with "
        "strategy.devices_per_replica and logical_device"
    )
