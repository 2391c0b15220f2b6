"""Finds the operations of a traced step whose results depend on how the batch is cut.

These are draws that `random_layers` does not cut, collectives of the user's own, and Python code
that the graph calls. Each is found with its place in the user's code: TensorFlow keeps the stack of
Python that an operation was made in.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.engine.graph.called_functions import called_functions

_DRAW = re.compile(
    r"(Stateless(?!RandomGet)|Stateful)\w*(Random|Uniform|Normal|Multinomial|Shuffle|Distorted)"
    r"|Random(?!IndexShuffle)|TruncatedNormal|Parameterized|Multinomial|SampleDistorted|RngRead"
    r"|\w+CandidateSampler"
)
_PYTHON = re.compile(r"(Eager)?PyFunc")
_COLLECTIVES = {"all_reduce", "all_gather", "merge_call"}
_COLLECTIVES_FILE = os.path.join("distribute", "distribute_lib.py")

_OWN_DRAWS = tuple(
    str(Path(__file__).with_name(f"{name}.py")) for name in ("random_layers", "randomness")
)
_ENGINE = tuple(f"{Path(__file__).parents[2] / name}{os.sep}" for name in ("engine", "worker"))

_UNCUT = "no Keras layer's own generator draws it, so it is not cut as the batch is"
_UNCUTTABLE = "numbers of this distribution cannot be cut as the batch is"
_COLLECTIVE = "a collective of your own, whose sum depends on how many replicas there are"
_CALLBACK = "Python code, which does not know the layout and may draw numbers"


@dataclass(frozen=True)
class Finding:
    """An operation whose result depends on the layout.

    Attributes:
        place: file and line of the user's code; empty if none is on its stack.
        operation: what it is.
        scope: the layers and name scopes that it is in.
        reason: why it depends on the layout.
    """

    place: str
    operation: str
    scope: str
    reason: str

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        scope = f" in {self.scope}" if self.scope else ""
        return f"{place}{self.operation}{scope}: {self.reason}"


def logged_collectives(lines: Sequence[str]) -> list[Finding]:
    """Return the collectives in the log of a step on one replica, which makes none of its own."""
    pairs = (line.rsplit(" at ", 1) for line in lines if " at " in line)
    return [
        Finding(_relative(place), operation.partition(" of ")[0], "", _COLLECTIVE)
        for operation, place in pairs
    ]


def find(graph: tf.Graph, *, sharded: bool) -> list[Finding]:
    """Find the operations of a graph, and of all functions that it calls; one for each place.

    Args:
        graph: a training step, traced for one replica.
        sharded: whether the batch is always cut in the same shards, so that a draw may have a seed
            of its shard.
    """
    found: dict[tuple[str, str], Finding] = {}
    for operation in _operations(graph):
        if finding := _check(operation, sharded=sharded):
            found.setdefault((finding.place or finding.scope, finding.reason), finding)
    return list(found.values())


def _check(operation: tf.Operation, *, sharded: bool) -> Finding | None:
    kind = operation.type
    reason = None
    if _DRAW.match(kind) and not _is_on_stack(operation, _OWN_DRAWS):
        if not _has_own_seed(operation):
            reason = _UNCUT
        elif not sharded:
            reason = _UNCUTTABLE
    elif _PYTHON.match(kind):
        reason = _CALLBACK
    elif name := _collective(operation):
        kind = name
        reason = _COLLECTIVE
    if reason is None:
        return None
    return Finding(_place(operation), kind, _scope(operation), reason)


def _operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yield the operations of a graph and of all functions that it calls, each once."""
    pending = [graph]
    visited = set()
    while pending:
        graph = pending.pop()
        if id(graph) in visited:
            continue
        visited.add(id(graph))
        for operation in graph.get_operations():
            yield operation
            for item in called_functions(operation.node_def):
                # A function that was loaded from a file has no graph.
                inner = getattr(graph._get_function(item.name), "graph", None)
                if inner is not None:
                    pending.append(inner)


def _has_own_seed(operation: tf.Operation) -> bool:
    """Return whether the seed of a draw was made by `random_layers`.

    Only integers are followed: a seed that was computed from features is the user's.
    """
    pending = [operation]
    visited = set()
    while pending:
        other = pending.pop()
        if id(other) in visited:
            continue
        visited.add(id(other))
        if _is_on_stack(other, _OWN_DRAWS):
            return True
        pending += [tensor.op for tensor in other.inputs if tensor.dtype.is_integer]
    return False


def _collective(operation: tf.Operation) -> str | None:
    """Return the collective of the user's own that an operation was made by, if any."""
    name = None
    for frame in _frames(operation):
        if frame.filename.endswith(_COLLECTIVES_FILE) and frame.name in _COLLECTIVES:
            name = frame.name
        elif not _is_library(frame.filename):
            return name if not frame.filename.startswith(_ENGINE) else None
    return None


def _place(operation: tf.Operation) -> str:
    """Return file and line of the innermost code that is neither a library's nor the engine's."""
    for frame in _frames(operation):
        if not _is_library(frame.filename) and not frame.filename.startswith(_ENGINE):
            return _relative(f"{frame.filename}:{frame.lineno}")
    return ""


def _relative(path: str) -> str:
    """Return a path as it is seen from the working directory, if it is below that."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _scope(operation: tf.Operation) -> str:
    """Return an operation's name scopes, without those of the engine's loops."""
    return re.sub(r"^(while(_\d+)?/)+", "", operation.name).rpartition("/")[0]


def _is_on_stack(operation: tf.Operation, files: tuple[str, ...]) -> bool:
    return any(frame.filename in files for frame in _frames(operation))


def _frames(operation: tf.Operation) -> list[Any]:
    """Return the stack that an operation was made in, the innermost frame first."""
    return list(reversed(list(operation.traceback or ())))


@functools.cache
def _is_library(filename: str) -> bool:
    """Return whether a file is one of TensorFlow's, Keras' or Python's own."""
    keras = sys.modules[tf.keras.Model.__module__.partition(".")[0]]
    folders = tuple(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (tf, keras))
    standard = sysconfig.get_paths()["stdlib"]
    return filename.startswith(folders) or (
        filename.startswith(standard) and "site-packages" not in filename
    )
