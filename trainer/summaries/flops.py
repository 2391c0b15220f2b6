"""Counts the floating-point operations of a graph: those of matrix products and convolutions.

A multiplication and its addition are two. Whatever else a graph does counts as 0: activations,
normalizations, pooling, updates of weights, and kernels such as cuDNN's of recurrent layers.
"""

from __future__ import annotations

import math
import re
from typing import Any

import tensorflow as tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_CONDITIONS = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}


def count_flops(graph: Any) -> float:
    """Return the operations of one run of a graph, and of the functions that it calls.

    Of a condition the larger branch counts. A loop counts as often as it runs if that is known when
    it is traced, else once. A dimension that is not known counts as 1.
    """
    outputs = {id(tensor) for tensor in graph.outputs}
    # What nobody reads is pruned, such as the gradient at the images of a first convolution.
    return sum(
        _of_operation(operation)
        for operation in graph.get_operations()
        if any(tensor.consumers() or id(tensor) in outputs for tensor in operation.outputs)
    )


def _of_operation(operation: tf.Operation) -> float:
    kind = operation.type
    if kind in _CALLS:
        return _of_function(operation, operation.get_attr("f"))
    if kind in _LOOPS:
        return _trips(operation) * _of_function(operation, operation.get_attr("body"))
    if kind in _CONDITIONS:
        branches = [operation.get_attr(name) for name in _CONDITIONS[kind]]
        return max(_of_function(operation, branch) for branch in branches)
    if kind in ("Case", "StatelessCase"):
        return max(_of_function(operation, branch) for branch in operation.get_attr("branches"))
    if kind == "MatMul":
        return _of_product(operation, "transpose_a")
    if kind.startswith("BatchMatMul"):
        return _of_product(operation, "adj_x")
    if kind == "Einsum":
        return _of_einsum(operation)
    if match := re.fullmatch(r"(Conv2D|Conv3D|DepthwiseConv2dNative)(Backprop\w+)?", kind):
        return _of_convolution(operation, match[2] or "")
    return 0.0


def _of_product(operation: tf.Operation, transposed: str) -> float:
    first = _dimensions(operation.inputs[0])
    inner = first[-2] if operation.get_attr(transposed) else first[-1]
    return 2.0 * inner * math.prod(_dimensions(operation.outputs[0]))


def _of_einsum(operation: tf.Operation) -> float:
    """Multiply the sizes of all indices; what an ellipsis stands for is in the larger factor."""
    if len(operation.inputs) < 2:
        return 0.0
    terms = operation.get_attr("equation").decode().partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    others = 1
    for term, tensor in zip(terms, operation.inputs, strict=True):
        dimensions = _dimensions(tensor)
        before, dots, after = term.strip().partition("...")
        end = len(dimensions) - len(after)
        sizes |= dict(zip(before, dimensions, strict=False))
        sizes |= dict(zip(after, dimensions[end:], strict=True))
        if dots:
            others = max(others, math.prod(dimensions[len(before) : end]))
    return 2.0 * others * math.prod(sizes.values())


def _of_convolution(operation: tf.Operation, backprop: str) -> float:
    """Multiply the positions of the output by the size of the filter, in both directions."""
    small, tensor = operation.inputs[1], operation.outputs[0]
    if backprop:
        tensor = operation.inputs[2]  # the gradient at the output
        if "Filter" in backprop:
            small = operation.outputs[0]
    sizes = _dimensions(tensor)
    is_first = operation.get_attr("data_format").decode().startswith("NC")
    positions = math.prod(sizes) / sizes[1 if is_first else -1]
    return 2.0 * positions * math.prod(_dimensions(small))


def _of_function(operation: tf.Operation, function: Any) -> float:
    return count_flops(_graph(operation, function))


def _graph(operation: tf.Operation, function: Any) -> Any:
    """Return the graph of a function that an operation names, as it was traced."""
    graph: Any = operation.graph
    while (traced := graph._get_function(function.name)) is None:
        graph = graph.outer_graph
    return traced.graph


def _trips(operation: tf.Operation) -> int:
    """Return how often a loop runs that counts up to a number; 1: it is not known."""
    condition = _graph(operation, operation.get_attr("cond"))
    limits = []
    for inner in condition.get_operations():
        if inner.type == "Less":
            begin, end = (_constant(tensor, condition, operation) for tensor in inner.inputs)
            if begin is not None and end is not None:
                limits.append(max(0, int(end) - int(begin)))
    return min(limits, default=1)


def _constant(tensor: tf.Tensor, graph: Any, caller: tf.Operation) -> Any:
    """Return the value of a number in a function, or of what its caller passes; None: unknown."""
    tensor = next(
        (
            outer
            for outer, inner in zip(caller.inputs, graph.inputs, strict=True)
            if inner is tensor
        ),
        tensor,
    )
    source = tensor.op
    if source.type in _LOOPS and tensor.value_index == 0:
        return _trips(source)  # of its gradient, which goes the same way back
    if source.type == "StridedSlice":  # a dimension
        shape, begin = map(tf.get_static_value, source.inputs[:2])
        return None if shape is None or begin is None else shape[begin[0]]
    return tf.get_static_value(tensor)


def _dimensions(tensor: tf.Tensor) -> list[int]:
    shape = tensor.shape
    return [1 if size is None else size for size in shape] if shape.rank is not None else [1, 1]
