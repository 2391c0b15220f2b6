"""Finds the operations of a traced step whose results depend on how the batch is cut.

These are draws that `random_layers` does not cut, collectives of the user's own, and Python code
that the graph calls. Each is found with its place in the user's code: TensorFlow keeps the stack of
Python that an operation was made in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from trainer.engine.graph.checks.traced_operations import (
    ENGINE,
    all_graphs,
    frames_of,
    is_library,
    place_of,
    relative,
    scope_of,
)

_DRAW = re.compile(
    r"(Stateless(?!RandomGet)|Stateful)\w*(Random|Uniform|Normal|Multinomial|Shuffle|Distorted)"
    r"|Random(?!IndexShuffle)|TruncatedNormal|Parameterized|Multinomial|SampleDistorted|RngRead"
    r"|\w+CandidateSampler"
)
_PYTHON = re.compile(r"(Eager)?PyFunc")
_COLLECTIVES = {"all_reduce", "all_gather", "merge_call"}
_COLLECTIVES_FILE = os.path.join("distribute", "distribute_lib.py")

_OWN_DRAWS = tuple(
    str(Path(__file__).parents[1] / "randomness" / f"{name}.py")
    for name in ("random_layers", "randomness")
)

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
        Finding(relative(place), operation.partition(" of ")[0], "", _COLLECTIVE)
        for operation, place in pairs
    ]


def find(graph: tf.Graph, *, sharded: bool) -> list[Finding]:
    """Find the operations of a graph, and of all functions that it calls; one for each place.

    Args:
        graph: a training step, traced for one replica.
        sharded: whether the batch is always cut in the same shards, so that a draw may have a seed
            of its shard.
    """
    findings: dict[tuple[str, str], Finding] = {}
    operations = (op for inner in all_graphs(graph) for op in inner.get_operations())
    for operation in operations:
        if finding := _check(operation, sharded=sharded):
            findings.setdefault((finding.place or finding.scope, finding.reason), finding)
    return list(findings.values())


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
    return Finding(place_of(operation), kind, scope_of(operation), reason)


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
    for frame in frames_of(operation):
        if frame.filename.endswith(_COLLECTIVES_FILE) and frame.name in _COLLECTIVES:
            name = frame.name
        elif not is_library(frame.filename):
            return name if not frame.filename.startswith(ENGINE) else None
    return None


def _is_on_stack(operation: tf.Operation, files: tuple[str, ...]) -> bool:
    return any(frame.filename in files for frame in frames_of(operation))
