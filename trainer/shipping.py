"""How batches reach workers in other processes: what a split holds in memory is sent to each of them once, not with every chunk.

The assembly of a batch is traced once; the tensors of this process that it refers to become its arguments. Calls into Python
cannot be sent along. Those that give nothing back, like the report of a file that cannot be read, are made here instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from trainer.errors import ConfigError
from trainer.input import Feed, Source, block_of
from trainer.protocols import Batch

_PYTHON_CALLS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


class Shipped(Feed):
    """For splits that reside in memory: every step gathers its batch.

    Args:
        source: assembles the batches.
        send: sends tensors to every worker, and gives what a chunk takes them from.
    """

    def __init__(self, source: Source, send: Callable[[list[tf.Tensor]], Any]) -> None:
        scalar = tf.TensorSpec([], tf.int64)
        self._assemble = tf.function(source.assemble, autograph=False).get_concrete_function(scalar, scalar)
        self._graph = self._assemble.graph.as_graph_def()
        self._calls_python = _leave_python_out(self._graph)
        self._source, self._send, self._sent = source, send, None
        self._left_out = tf.zeros([0], tf.int64)

    def start(self, step: int, left_out: Sequence[int] = ()) -> Any:
        # Once: a worker that is started again gets all that was ever sent.
        if self._sent is None:
            self._left_out = tf.constant(left_out, tf.int64)
            self._sent = self._send([*self._assemble.captured_inputs, self._left_out])
        return self._sent

    def open(self, tensors: Any, start: tf.Tensor, count: tf.Tensor) -> Any:
        """Opens, on a worker, the input of the steps [start, start + count); `take` takes from it."""
        return tensors

    def take(self, opened: Any) -> Any:
        return opened

    def give(self, taken: Any, step: tf.Tensor, replica: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        return self._assembled(step, replica, taken)

    def judge(self, first: int, count: int, weight: float) -> None:
        """Makes the calls into Python that steps would have made here, if any of their examples did not count.

        Args:
            first: the first step.
            count: how many steps.
            weight: the sum of their examples' weights.

        Raises:
            tf.errors.InvalidArgumentError: such a call raised a ValueError.
        """
        size = self._source.global_size
        examples = count * size if self._source.order else min(count * size, self._source.split.num_examples - first * size)
        if self._calls_python and weight < examples:
            for step in range(first, first + count):
                for replica in range(self._source.num_replicas):
                    self._assemble(block_of(tf.constant(step, tf.int64), self._left_out), tf.constant(replica, tf.int64))

    def _assembled(self, step: tf.Tensor, replica: tf.Tensor, tensors: Any) -> tuple[Batch, tf.Tensor]:
        # The identity brings a tensor from the graph around the loop into the loop's own; nothing is copied.
        *captured, left_out = tensors
        given = [tf.identity(x) for x in (block_of(step, left_out), tf.cast(replica, tf.int64), *captured)]
        inputs = {placeholder.name: x for placeholder, x in zip(self._assemble.inputs, given, strict=False)}
        names = [output.name for output in self._assemble.outputs]
        values = tf.graph_util.import_graph_def(self._graph, inputs, names, name="assemble")
        for value, output in zip(values, self._assemble.outputs, strict=True):
            value.set_shape(output.shape)
        return tf.nest.pack_sequence_as(self._assemble.structured_outputs, values)


class Prefetched(Shipped):
    """For splits that are read and decoded: a chunk has a pipeline of its own, which works ahead of its steps."""

    def open(self, tensors: Any, start: tf.Tensor, count: tf.Tensor) -> Any:
        replicas = self._source.num_replicas

        def element(number: tf.Tensor) -> tuple[Batch, tf.Tensor]:
            return self._assembled(number // replicas, number % replicas, tensors)

        numbers = tf.data.Dataset.range(start * replicas, (start + count) * replicas)
        # Two at a time: while one batch waits for its slowest file, the next is already being decoded.
        batches = numbers.map(element, num_parallel_calls=2, deterministic=True).batch(replicas, drop_remainder=True)
        return iter(batches.prefetch(2))

    def take(self, opened: Any) -> Any:
        return opened.get_next()

    def give(self, taken: Any, step: tf.Tensor, replica: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        return tf.nest.map_structure(lambda x: x[replica], taken)


def _leave_python_out(graph: Any) -> bool:
    """Takes the calls into Python out of a GraphDef.

    Returns:
        Whether there were any.

    Raises:
        ConfigError: one of them gives something back.
    """
    functions = graph.library.function
    nodes = [*graph.node, *(node for function in functions for node in function.node_def)]
    calls = [node for node in nodes if node.op in _PYTHON_CALLS]
    for node in calls:
        if node.attr["Tout"].list.type:
            raise ConfigError(
                f"dataset: its examples come from a Python function ({node.name}), which workers in other processes cannot call; "
                "make them with TensorFlow's operations, or choose another strategy"
            )
        name, order = node.name, [given for given in node.input if given.startswith("^")]
        node.Clear()
        node.name, node.op = name, "NoOp"
        node.input.extend(order)
    # Under other names: this process has functions of these names, with the calls in them. What an imported graph's functions
    # call in turn is unknown to workers unless it is known here.
    renamed = {function.signature.name: f"{function.signature.name}_shipped" for function in functions} if calls else {}
    for function in functions:
        function.signature.name = renamed.get(function.signature.name, function.signature.name)
    for node in nodes:
        node.op = renamed.get(node.op, node.op)
        for name in _function_names(node):
            name.name = renamed.get(name.name, name.name)
    for function in functions if calls else ():
        context.context().add_function_def(function)
    return bool(calls)


def _function_names(node: Any) -> Iterator[Any]:
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        yield from value.list.func
