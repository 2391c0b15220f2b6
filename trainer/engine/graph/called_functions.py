"""The functions that the operations of a graph call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def called_functions(node: Any) -> Iterator[Any]:
    """Yield the functions in the attributes of a node, a NodeDef, each a mutable NameAttrList."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        yield from value.list.func


def all_graphs(graph: tf.Graph) -> list[tf.Graph]:
    """Return a graph and those of all functions that it calls, each once."""
    graphs = [graph]
    visited = {id(graph)}
    for outer in graphs:
        for operation in outer.get_operations():
            for item in called_functions(operation.node_def):
                # A function that was loaded from a file has no graph.
                inner = getattr(outer._get_function(item.name), "graph", None)
                if inner is not None and id(inner) not in visited:
                    visited.add(id(inner))
                    graphs.append(inner)
    return graphs
