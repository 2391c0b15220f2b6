"""The devices of one replica within a step: what is computed on which, and what models request.

The backward pass is put where the forward pass was: TensorFlow names a gradient by the scope of its
operation, and the scope of a logical device ends in its number. Where replicas have one device each
nothing here does anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from trainer.errors import ConfigError
from trainer.logical_devices import SCOPE, current_groups, replica_group

BACKWARD = "backward_pass"
_HOST = ("CPU", 0)  # always allowed: lookups and decoding exist only there
_SCOPES = re.compile(rf"(?:^|/){SCOPE}(\d+)(?:_\d+)?(?=/)")
"""A scope that is entered again has a further number at its end."""


def index_in(group: Sequence[str], device: str) -> int | None:
    """Return the number of a device within a replica's, in any process; None: not its own."""
    wanted = device_key(device)
    return next((i for i, name in enumerate(group) if device_key(name) == wanted), None)


def device_key(device: str | None) -> tuple[str | None, int | None]:
    """Return type and number of a device in any process, or None without a name."""
    spec = tf.DeviceSpec.from_string(device or "")
    return spec.device_type, spec.device_index


def group_with(device: str | None) -> tuple[str, ...] | None:
    """Return the devices of the replica that has this one; None: replicas have but one each."""
    groups = current_groups()
    if groups is None:
        return None
    return next(
        (group for group in groups.groups if index_in(group, device or "") is not None), None
    )


def beside(value: Any) -> AbstractContextManager[Any]:
    """Compute what is inside on the replica's device that holds a tensor or variable."""
    group = replica_group()
    if group is None or (index := index_in(group, value.device)) is None:
        return nullcontext()
    return tf.device(group[index])


def on_own_device(function: Callable[..., tf.Tensor], value: Any, *others: Any) -> tf.Tensor:
    """Apply a function to a tensor and others, on the replica's device that holds the first."""
    with beside(value):
        return function(value, *others)


def numbers_of(values: Sequence[Any]) -> list[int]:
    """Return the number of the replica's device that holds each tensor; 0 for a single device."""
    group = replica_group()
    if group is None:
        return [0] * len(values)
    return [index_in(group, value.device) or 0 for value in values]


@contextmanager
def backward_pass() -> Iterator[None]:
    """Trace a backward pass inside; every operation is put where its forward pass was.

    The gradient of a function is put next to the function. A sum of gradients is put where the
    first of them is, and so is what else has no scope.
    """
    if replica_group() is None:
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    with tf.name_scope(BACKWARD):
        yield
    for operation in graph.get_operations()[first:]:
        # Not always this replica's: where they communicate, they are traced alternately.
        group = group_with(operation.device)
        index = None if group is None else _index_of(operation, group)
        if group is not None and index is not None and not _is_bound(operation):
            spec = tf.DeviceSpec.from_string(operation.device)
            kind, number = device_key(group[index])
            operation._set_device(spec.replace(device_type=kind, device_index=number).to_string())


def _index_of(operation: tf.Operation, group: Sequence[str]) -> int | None:
    if scopes := _SCOPES.findall(operation.name):
        return int(scopes[-1])
    # The gradient of a function takes what the function kept for it.
    inputs = sorted(operation.inputs, key=lambda tensor: tensor.op.type != operation.type)
    places = (index_in(group, tensor.device) for tensor in inputs)
    return next((index for index in places if index is not None), None)


def _is_bound(operation: tf.Operation) -> bool:
    """Return whether TensorFlow puts an operation next to another one, or next to its variable."""
    if any(tensor.dtype == tf.resource for tensor in operation.inputs):
        return True
    try:
        return bool(operation.get_attr("_class"))
    except ValueError:
        return False


@contextmanager
def no_devices_for_variables() -> Iterator[None]:
    """Refuse variables that are made under another `tf.device` than `strategy.scope()`'s own.

    Keras ignores the `tf.device` that a layer is made under.
    """
    own = context.context().device_name

    def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        requested = context.context().device_name
        if requested != own:
            _check_request(options.get("name") or "", requested, own)
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def _check_request(variable: str, requested: str, own: str) -> None:
    """Raise a ConfigError if the device of a variable is neither its replica's nor the host."""
    kind, index = device_key(requested)
    if kind not in ("CPU", "GPU"):
        return
    allowed = (_HOST, device_key(own), *map(device_key, group_with(own) or ()))
    if any(kind == other and index in (None, number) for other, number in allowed):
        return
    name = kind if index is None else f"{kind}:{index}"
    raise ConfigError(
        f"model: variable {variable} requests the device {name}, but every replica computes the "
        "whole model on its own device; remove tf.device from the model, or divide the model with "
        "strategy.devices_per_replica and logical_device"
    )


def traffic(graph: tf.Graph, groups: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Count the bytes that a traced step sends between devices.

    A tensor of known size that is used on another device than its own is sent there once. Control
    edges, and what moves within a function that an operation calls, are not counted. Reads and
    updates are on their variable's device, as TensorFlow puts them.

    Returns:
        Bytes sent between the devices of the first replica, and between the devices of different
        replicas of this process.
    """
    within = between = 0
    replica_of = {device_key(name): number for number, group in enumerate(groups) for name in group}
    handles = {
        id(inner.op): device_key(_outermost(graph, outer).device)
        for outer, inner in graph.captures
        if inner.dtype == tf.resource
    }

    def device_of(operation: tf.Operation) -> Any:
        variables = (handles.get(id(tensor.op)) for tensor in operation.inputs)
        return next(filter(None, variables), device_key(operation.device))

    for operation in graph.get_operations():
        own = device_of(operation)
        if own not in replica_of:
            continue
        for tensor in operation.outputs:
            count = tensor.shape.num_elements()
            if tensor.dtype in (tf.resource, tf.variant) or count is None:
                continue
            others = {device_of(consumer) for consumer in tensor.consumers()} - {own}
            for other in others & replica_of.keys():
                if replica_of[own] != replica_of[other]:
                    between += count * tensor.dtype.size
                elif replica_of[own] == 0:
                    within += count * tensor.dtype.size
    return within, between


def _outermost(graph: Any, tensor: Any) -> Any:
    """Return the tensor, outside all functions, that a captured one refers to."""
    graph = graph.outer_graph
    while hasattr(tensor, "graph") and hasattr(graph, "captures"):
        tensor = next((outer for outer, inner in graph.captures if inner is tensor), tensor)
        graph = graph.outer_graph
    return tensor
