"""Refuses a `tf.data.Dataset` whose elements depend on which of its threads is first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_WITH_STATE = ("Stateful", "Rng", "Assign")
"""How operations begin that draw from, or change, a variable."""


def check_order(dataset: tf.data.Dataset, split: str) -> None:
    """Check that parallel calls do not decide what an element is, or where it is.

    By TensorFlow's own classes, which only a change of TensorFlow changes: then nothing is seen.

    Args:
        dataset: what a user's function has returned.
        split: which split it is, for messages.

    Raises:
        ValueError: a function that is called in parallel draws random numbers of an operation that
            has a state, or elements come in any order.
    """
    for stage in _stages(dataset):
        name = type(stage).__name__.strip("_")
        if getattr(stage, "_deterministic", None) == "false":
            raise ValueError(
                f"the {name} of {split} has deterministic=False, so that no run could be repeated "
                "or continued; remove it"
            )
        if drawing := sorted(_drawing(stage, is_parallel=name.startswith("Parallel"))):
            raise ValueError(
                f"the function of a map of {split} draws random numbers ({drawing[0]}) in parallel "
                "calls: which element gets which is chance, so that no run could be repeated or "
                "continued; remove num_parallel_calls there, or draw with tf.random.stateless_*, "
                "whose seed is an element of tf.data.Dataset.random(seed=0)"
            )
    if dataset.options().deterministic is False:
        raise ValueError(
            f"the options of the dataset of {split} have deterministic=False, so that no run could "
            "be repeated or continued; remove it"
        )


def _stages(dataset: Any) -> Iterator[Any]:
    yield dataset
    for source in dataset._inputs():
        yield from _stages(source)


def _drawing(stage: Any, *, is_parallel: bool) -> Iterator[str]:
    """Yield the operations with a state of random numbers that are called in parallel."""
    for function in stage._functions():
        graph = function.function.graph.as_graph_def()
        operations = {
            node.op
            for nodes in (graph.node, *(inner.node_def for inner in graph.library.function))
            for node in nodes
        }
        if is_parallel or any(name.startswith("Parallel") for name in operations):
            yield from filter(_draws, operations)


def _draws(operation: str) -> bool:
    definition = op_def_registry.get(operation)
    if definition is None or not definition.is_stateful:
        return False
    has_seed = any(attribute.name == "seed" for attribute in definition.attr)
    return has_seed or operation.startswith(_WITH_STATE)
