"""What a traced step sends between devices.

Counted on the graph: a tensor of known size that is used on another device than its own is sent
there once. Control edges, and what moves within a function that an operation calls, are not
counted. Reads and updates are on their variable's device, as TensorFlow puts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.engine.graph.placement.step_devices import device_key


def traffic(graph: tf.Graph, groups: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Measure a step.

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
    """Return the tensor, outside all functions, that a captured one stands for."""
    graph = graph.outer_graph
    while hasattr(tensor, "graph") and hasattr(graph, "captures"):
        tensor = next((outer for outer, inner in graph.captures if inner is tensor), tensor)
        graph = graph.outer_graph
    return tensor
