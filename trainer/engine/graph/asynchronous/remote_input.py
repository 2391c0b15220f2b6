"""Feeds for workers in other processes.

What a split holds in memory is sent to each worker once, not with every chunk. The assembly of a
batch is traced once; the tensors of this process that it refers to become its arguments. Calls into
Python cannot be sent along. Those that return nothing, like the report of a file that cannot be
read, are made here instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf
from tensorflow.python.eager import context

from trainer.engine.graph.checks.graph_check import called_functions
from trainer.engine.graph.input.feed import Feed, Source, block_of
from trainer.errors import ConfigError
from trainer.protocols import Batch

_PYTHON_CALLS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


class RemoteFeed(Feed):
    """Feeds a split that resides in memory: every step gathers its batch.

    Args:
        send: sends tensors to every worker, and returns the iterator that a chunk takes them from.
    """

    fetches: ClassVar[bool] = False

    def __init__(self, source: Source, send: Callable[[list[tf.Tensor]], Any]) -> None:
        scalar = tf.TensorSpec([], tf.int64)
        self._assemble = tf.function(source.assemble, autograph=False).get_concrete_function(
            scalar, scalar
        )
        self._graph = self._assemble.graph.as_graph_def()
        self._calls_python = _remove_python_calls(self._graph)
        self._source = source
        self._send = send
        self._sent = None
        self._left_out = tf.zeros([0], tf.int64)

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        # Once: a worker that is started again gets all that was ever sent.
        if self._sent is None:
            self._left_out = tf.constant(left_out, tf.int64)
            self._sent = self._send([*self._assemble.captured_inputs, self._left_out])
        return self._sent

    def open_chunk(self, tensors: Any, start: tf.Tensor, count: tf.Tensor) -> Any:
        """Open, on a worker, the input of the steps [start, start + count), for `next`."""
        return tensors

    def next(self, iterator: Any) -> Any:
        return iterator

    def replica_batch(
        self, element: Any, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        return self._assembled(step, replica, element)

    def count_missing(self, first: int, count: int, weight: float) -> None:
        """Make the steps' calls into Python here, if any of their examples did not count.

        Raises:
            tf.errors.InvalidArgumentError: such a call raised a ValueError.
        """
        size = self._source.global_size
        examples = (
            count * size
            if self._source.order
            else min(count * size, self._source.split.num_examples - first * size)
        )
        if self._calls_python and weight < examples:
            for step in range(first, first + count):
                for replica in range(self._source.num_replicas):
                    self._assemble(
                        block_of(tf.constant(step, tf.int64), self._left_out),
                        tf.constant(replica, tf.int64),
                    )

    def _assembled(
        self, step: tf.Tensor, replica: tf.Tensor, tensors: Any
    ) -> tuple[Batch, tf.Tensor]:
        # The identity brings a tensor from the graph around the loop into the loop's; it copies
        # nothing.
        *captured, left_out = tensors
        arguments = [
            tf.identity(x)
            for x in (block_of(step, left_out), tf.cast(replica, tf.int64), *captured)
        ]
        inputs = {
            placeholder.name: x
            for placeholder, x in zip(self._assemble.inputs, arguments, strict=False)
        }
        names = [output.name for output in self._assemble.outputs]
        values = tf.graph_util.import_graph_def(self._graph, inputs, names, name="assemble")
        for value, output in zip(values, self._assemble.outputs, strict=True):
            value.set_shape(output.shape)
        return tf.nest.pack_sequence_as(self._assemble.structured_outputs, values)


class RemotePipelineFeed(RemoteFeed):
    """Feeds a split that is read and decoded: each chunk has a pipeline, ahead of its steps."""

    def open_chunk(self, tensors: Any, start: tf.Tensor, count: tf.Tensor) -> Any:
        replicas = self._source.num_replicas

        def element(number: tf.Tensor) -> tuple[Batch, tf.Tensor]:
            return self._assembled(number // replicas, number % replicas, tensors)

        numbers = tf.data.Dataset.range(start * replicas, (start + count) * replicas)
        # Two at a time: while one batch waits for its slowest file, the next is being decoded.
        batches = numbers.map(element, num_parallel_calls=2, deterministic=True).batch(
            replicas, drop_remainder=True
        )
        return iter(batches.prefetch(2))

    def next(self, iterator: Any) -> Any:
        return iterator.get_next()

    def replica_batch(
        self, element: Any, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        return tf.nest.map_structure(lambda x: x[replica], element)


def _remove_python_calls(graph: Any) -> bool:
    """Remove the calls into Python from a GraphDef; return whether there were any."""
    # TensorFlow has no public way: it imports a GraphDef as it is, with its library of functions,
    # and pruning keeps a call that returns nothing, for others wait for it.
    functions = graph.library.function
    nodes = [*graph.node, *(node for function in functions for node in function.node_def)]
    calls = [node for node in nodes if node.op in _PYTHON_CALLS]
    for node in calls:
        if node.attr["Tout"].list.type:
            raise ConfigError(
                f"dataset: its examples come from a Python function ({node.name}), which workers "
                "in other processes cannot call; make them with TensorFlow's operations, or choose "
                "another strategy"
            )
        name = node.name
        control_inputs = [name for name in node.input if name.startswith("^")]
        node.Clear()
        node.name = name
        node.op = "NoOp"
        node.input.extend(control_inputs)
    # Under other names: this process has functions of these names, with the calls in them. What an
    # imported graph's functions call in turn is unknown to workers unless it is known here.
    renamed = (
        {function.signature.name: f"{function.signature.name}_remote" for function in functions}
        if calls
        else {}
    )
    for function in functions:
        function.signature.name = renamed.get(function.signature.name, function.signature.name)
    for node in nodes:
        node.op = renamed.get(node.op, node.op)
        for function in called_functions(node):
            function.name = renamed.get(function.name, function.name)
    for function in functions if calls else ():
        context.context().add_function_def(function)
    return bool(calls)
