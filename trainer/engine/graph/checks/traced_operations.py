"""The operations of a graph: those of the functions that it calls, and where each was made.

TensorFlow keeps the stack of Python that an operation was made in.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import trainer

ENGINE = tuple(
    f"{Path(trainer.__file__).parent / name}{os.sep}" for name in ("engine", "own_loop", "worker")
)


def place_of(operation: tf.Operation) -> str:
    """Return file and line of the innermost code that is neither a library's nor the engine's."""
    for frame in frames_of(operation):
        if not is_library(frame.filename) and not frame.filename.startswith(ENGINE):
            path = os.path.relpath(frame.filename)
            path = frame.filename if path.startswith(os.pardir) else path
            return f"{path}:{frame.lineno}"
    return ""


def scope_of(operation: tf.Operation) -> str:
    """Return an operation's name scopes, without those of the engine's loops."""
    return re.sub(r"^(while(_\d+)?/)+", "", operation.name).rpartition("/")[0]


def frames_of(operation: tf.Operation) -> list[Any]:
    """Return the stack that an operation was made in, the innermost frame first."""
    return list(reversed(list(operation.traceback or ())))


@functools.cache
def is_library(filename: str) -> bool:
    """Return whether a file is one of TensorFlow's, Keras' or Python's own."""
    libraries = (sys.modules.get(name) for name in ("tensorflow", "tf_keras", "keras"))
    paths = (Path(str(module.__file__)) for module in libraries if module)
    folders = tuple(f"{path.parent}{os.sep}" for path in paths)
    standard = sysconfig.get_paths()["stdlib"]
    return filename.startswith(folders) or (
        filename.startswith(standard) and "site-packages" not in filename
    )


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
