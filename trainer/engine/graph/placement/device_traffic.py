"""What a traced step sends between devices.

Counted on the graph: a tensor that is used on another device than its own is sent there once,
however many operations use it. Control edges, and what moves within a function that an operation
calls, are not counted. Reads and updates are on their variable's device, as TensorFlow puts them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainer.engine.graph.placement.step_devices import BACKWARD, FORWARD, device_key

KINDS = ("forward", "backward", "update")
"""Activations and what else the forward pass needs; gradients; all after the backward pass."""

_IN_BACKWARD = re.compile(rf"(?:^|/)(?:gradient_tape|{BACKWARD}(?:_\d+)?)/")
_IN_FORWARD = re.compile(rf"(?:^|/){FORWARD}(?:_\d+)?/")
_Key = tuple[str | None, int | None]
_NO_DATA = (tf.resource, tf.variant)


@dataclass
class StepTraffic:
    """What one step sends.

    Attributes:
        within: kind -> bytes sent between the devices of the first replica.
        between: bytes sent between the devices of different replicas of this process.
        unknown: number of tensors that are sent and whose size is not known.
    """

    within: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    between: int = 0
    unknown: int = 0


def measure(graph: tf.Graph, groups: Sequence[Sequence[str]]) -> StepTraffic:
    """Measure a step.

    Args:
        graph: the graph in which the step of all replicas has been traced.
        groups: the devices of each replica.
    """
    traffic = StepTraffic()
    replica_of = {device_key(name): number for number, group in enumerate(groups) for name in group}
    devices = _Devices(graph)
    for operation in graph.get_operations():
        own = devices.of(operation)
        if own not in replica_of:
            continue
        for tensor in operation.outputs:
            if tensor.dtype in _NO_DATA:
                continue
            others = {devices.of(consumer) for consumer in tensor.consumers()} - {own}
            for other in others & replica_of.keys():
                _add(traffic, tensor, replica_of[own], replica_of[other])
    return traffic


def kind_of(operation: tf.Operation) -> str:
    """Return which part of a step an operation belongs to, by its name."""
    if _IN_BACKWARD.search(operation.name):
        return "backward"
    return "forward" if _IN_FORWARD.search(operation.name) else "update"


def _add(traffic: StepTraffic, tensor: tf.Tensor, source: int, target: int) -> None:
    count = tensor.shape.num_elements()
    if count is None:
        traffic.unknown += 1
    elif source != target:
        traffic.between += count * tensor.dtype.size
    elif source == 0:
        traffic.within[kind_of(tensor.op)] += count * tensor.dtype.size


class _Devices:
    """Where the operations of a graph are computed.

    Args:
        graph: the graph, perhaps of a function within others.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._of_handles: dict[int, _Key] = {}
        for outer, inner in graph.captures:
            if inner.dtype == tf.resource:
                self._of_handles[id(inner.op)] = device_key(_outermost(graph, outer).device)

    def of(self, operation: tf.Operation) -> _Key:
        """Return the device of an operation; of one that uses a variable, the variable's."""
        for tensor in operation.inputs:
            if tensor.dtype == tf.resource and id(tensor.op) in self._of_handles:
                return self._of_handles[id(tensor.op)]
        return device_key(operation.device)


def _outermost(graph: Any, tensor: Any) -> Any:
    """Return the tensor, outside all functions, that a captured one stands for."""
    graph = graph.outer_graph
    while hasattr(tensor, "graph") and hasattr(graph, "captures"):
        tensor = next((outer for outer, inner in graph.captures if inner is tensor), tensor)
        graph = graph.outer_graph
    return tensor
