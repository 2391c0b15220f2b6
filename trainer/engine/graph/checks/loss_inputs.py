"""Judges what the losses of a traced step are computed from.

A cross-entropy of logits that is given the probabilities of a softmax or sigmoid trains something
else, without an error: most examples of Keras end in one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf

from trainer.engine.graph.checks.traced_operations import called_functions
from trainer.errors import ConfigError

_LOSSES = ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", "Softplus")
"""Operations whose first input is logits; the last is of labels of 0 and 1."""

_SAME_VALUES = {
    "Cast", "Identity", "EnsureShape", "CheckNumerics", "Reshape", "Squeeze", "ExpandDims",
    "Transpose", "StridedSlice", "Slice", "GatherV2", "Pack", "Unpack", "Split", "SplitV",
    "ConcatV2", "Neg", "Abs", "Select", "SelectV2",
}  # fmt: skip
"""Operations that change nothing of probabilities but shape, type and sign, or leave some out."""

_CONSTANTS = ("Const", "Fill", "ZerosLike", "OnesLike")
"""What probabilities may be masked or padded with."""


def check_losses(graphs: Sequence[tf.Graph]) -> None:
    """Check that no loss of logits is given probabilities.

    Args:
        graphs: those of what was traced.

    Raises:
        ConfigError: one is; names the layer.
    """
    for inner in graphs:
        for operation in inner.get_operations():
            logits = _logits(operation)
            if logits is None or (source := _activation(inner, logits)) is None:
                continue
            kind, scope = source
            raise ConfigError(
                f"model: the loss takes logits, and is given the probabilities of a {kind}"
                f"{f' (layer {scope})' if scope else ''}, of which it would take the {kind} again; "
                "remove that activation: mode=predict and mode=export give probabilities"
            )


def _logits(operation: tf.Operation) -> tf.Tensor | None:
    """Return the input of an operation that is logits, if there is one."""
    if operation.type in _LOSSES:
        return operation.inputs[0]
    if operation.type == "Log1p" and operation.inputs[0].op.type == "Exp":
        return operation.inputs[0].op.inputs[0]  # as `sigmoid_cross_entropy_with_logits` writes it
    return None


def _activation(graph: tf.Graph, tensor: tf.Tensor) -> tuple[str, str] | None:
    """Return `softmax` or `sigmoid` and its layer, if that is where a tensor's values come from.

    Not where logits stand beside the probabilities: the loss may be of these alone.
    """
    source: tuple[str, str] | None = None
    pending = [tensor]
    visited = set()
    while pending:
        tensor = pending.pop()
        operation = tensor.op
        if id(tensor) in visited:
            continue
        visited.add(id(tensor))
        if operation.type in ("Softmax", "Sigmoid"):
            source = operation.type.lower(), _scope(operation)
        elif operation.type == "IdentityN":
            pending.append(operation.inputs[tensor.value_index])
        elif operation.type in _SAME_VALUES:
            pending += [x for x in operation.inputs if x.dtype.is_floating]
        elif operation.type in _CONSTANTS:
            continue
        elif (inner_source := _called_activation(graph, tensor)) is not None:
            source = inner_source
        else:
            return None
    return source


def _called_activation(graph: tf.Graph, tensor: tf.Tensor) -> tuple[str, str] | None:
    """Return the same for what a called function returns; None also where none is called."""
    if tensor.op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        for item in called_functions(tensor.op.node_def):
            inner = getattr(graph._get_function(item.name), "graph", None)
            if inner and (source := _activation(inner, inner.outputs[tensor.value_index])):
                return source[0], "/".join(filter(None, (_scope(tensor.op), source[1])))
    return None


def _scope(operation: tf.Operation) -> str:
    """Return the layers that an operation is in, without the loops around them."""
    return re.sub(r"^((while|replica)(_\d+)?/)+", "", operation.name).rpartition("/")[0]
