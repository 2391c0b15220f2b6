"""Whether a process that lost another one in a step still holds the state between two steps.

At the start of each step the loop writes what it carries into the state's variables. A step then
computes, adds up over the processes, and only after that changes variables: `begin_update` notes
it first. So a process whose sum has failed is where all of them were, and its state can be gone on
from, unless an update was begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.engine.graph.checks.traced_operations import all_graphs
from trainer.engine.graph.exchange.exchange_timer import UNSAVED

_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStrided")
"""How the names of operations begin that change a variable."""


class StepBoundary:
    """Notes in variables of this process where its step is.

    Attributes:
        captures_updates: whether what forward passes would assign, as moving statistics, waits for
            the sum over the processes; it cannot where replicas of one process communicate within
            a forward pass.

    Args:
        captures_updates: see above.
    """

    def __init__(self, *, captures_updates: bool) -> None:
        self.captures_updates = captures_updates
        self._markers: list[tf.Operation] = []
        self._own: set[tf.Operation] = set()
        self._is_known = False
        with tf.device("CPU:0"):  # of this process alone, and in no checkpoint
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False, name="begun")
            self._diverged = tf.Variable(-1, dtype=tf.int64, trainable=False, name="diverged")

    def reach(self, inputs: Any, diverged: tf.Tensor, write: Callable[[], None]) -> Any:
        """Write the state that all processes have reached, before a step begins; in the loop.

        Args:
            inputs: what the step begins with, a nest.
            diverged: the step that has diverged, int64; -1: none has.
            write: assigns what the loop carries to the variables of the state.

        Returns:
            The same inputs, which are there when the state is written.
        """
        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        write()
        self._diverged.assign(diverged)
        written = graph.get_operations()[num_before:]
        self._markers, self._own = [], set(written)
        with tf.control_dependencies(written):
            return tf.nest.map_structure(
                lambda x: tf.identity(x) if tf.is_tensor(x) else x, inputs, expand_composites=True
            )

    def begin_update(self, index: tf.Tensor, sums: Any) -> Any:
        """Note that step `index` changes variables from now on; in replica context.

        Args:
            index: number of the step, from 0.
            sums: all that the update is made of, a nest: there when all processes have added up.

        Returns:
            The same sums, from which the update must follow.
        """
        tensors = tf.nest.flatten(sums, expand_composites=True)
        with tf.control_dependencies(tensors):
            begun = self._begun.assign(index + 1, read_value=False)
        self._markers.append(begun)
        with tf.control_dependencies([begun]):
            tensors = [tf.identity(x) for x in tensors]
        return tf.nest.pack_sequence_as(sums, tensors, expand_composites=True)

    def examine(self) -> None:
        """Find out, once the step is traced, whether anything changes before `begin_update`."""
        reached = set(self._markers)
        pending = list(reached)
        while pending:
            operation = pending.pop()
            following = [x for output in operation.outputs for x in output.consumers()]
            for other in (*following, *operation._control_outputs):
                if other not in reached:
                    reached.add(other)
                    pending.append(other)
        graphs = {marker.graph for marker in self._markers}
        self._is_known = len(graphs) == 1 and not any(
            _writes(operation)
            for operation in graphs.pop().get_operations()
            if operation not in reached
            and operation not in self._own
            and UNSAVED not in operation.name.split("/")
        )

    def is_at(self, step: int) -> bool:
        """Return whether this process holds the whole state after `step` steps, and a sound one."""
        is_whole = int(self._begun.numpy()) <= step and int(self._diverged.numpy()) < 0
        return self._is_known and is_whole


def _writes(operation: tf.Operation) -> bool:
    """Return whether an operation, or a function that it calls, changes a variable."""
    if operation.type.startswith(_WRITES):
        return True
    if not operation.op_def.is_stateful:
        return False
    return any(
        inner.type.startswith(_WRITES)
        for graph in all_graphs(operation.graph)[1:]
        if any(graph.name in str(value) for value in operation.node_def.attr.values())
        for inner in graph.get_operations()
    )
