"""The operations of a graph, those of the functions that it calls included."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry


def called_functions(node: Any) -> Iterator[Any]:
    """Yield the functions in the attributes of a node, a NodeDef, each a mutable NameAttrList."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        yield from value.list.func


def all_graphs(graph: tf.Graph) -> list[tf.Graph]:
    """Return a graph and those of all functions that it calls, each once.

    Functions of tf.data are not among them, nor are those that have no graph.
    """
    graphs = [graph]
    visited = {id(graph)}
    for outer in graphs:
        for operation in outer.get_operations():
            if not _calls(operation.type):
                continue
            for item in called_functions(operation.node_def):
                # A function that was loaded from a file has no graph.
                inner = getattr(outer._get_function(item.name), "graph", None)
                if inner is not None and id(inner) not in visited:
                    visited.add(id(inner))
                    graphs.append(inner)
    return graphs


def attributes_of(kind: str) -> set[str]:
    """Return the names of the attributes that operations of a kind have."""
    return {attribute.name for attribute in _attributes(kind)}


@functools.cache
def _calls(kind: str) -> bool:
    types = {attribute.type for attribute in _attributes(kind)}
    return bool(types & {"func", "list(func)"}) and "Dataset" not in kind


def _attributes(kind: str) -> Any:
    definition = op_def_registry.get(kind)
    return definition.attr if definition else ()
