"""Variables that a strategy splits over several servers, and how a checkpoint knows them: whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


class SplitParameters(tf.distribute.ParameterServerStrategy):
    """Splits what layers train, and nothing else: all else is small, or belongs to a shard and is with it already.

    A split variable starts with the same values as an unsplit one. Left to itself, Keras would draw each shard's values for a
    layer of the shard's size.

    Args:
        resolver: knows the cluster.
        split: gives the number of shards in each dimension of a variable, from its shape and type; one of
            `tf.distribute.experimental.partitioners`.
    """

    def __init__(self, resolver: tf.distribute.cluster_resolver.ClusterResolver, split: Callable[..., list[int]]) -> None:
        self._trained = False
        super().__init__(resolver, lambda shape, dtype: split(shape, dtype) if self._trained else [1] * shape.rank)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Makes this strategy the current one."""
        with super().scope(), tf.variable_creator_scope(self._create):
            yield

    def _create(self, next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        self._trained, value = bool(options.get("trainable")), options["initial_value"]
        if self._trained and callable(value):
            options["initial_value"] = value()
        return next_creator(**options)


def whole(variables: Sequence[tf.Variable]) -> list[Any]:
    """Gives variables as a checkpoint knows them: instead of the shards of a split one, that one."""
    found = [variable._sharded_container() if hasattr(variable, "_sharded_container") else variable for variable in variables]
    return list({id(variable): variable for variable in found}.values())


def split_alike(variables: Sequence[tf.Variable], pattern: Sequence[tf.Variable]) -> list[Any]:
    """Gives variables, one for each of `pattern`, as a checkpoint knows those. The result must be kept."""
    own = {id(theirs): variable for variable, theirs in zip(variables, pattern, strict=True)}
    return [
        tf.__internal__.distribute.ShardedVariable([own[id(shard)] for shard in theirs.variables])
        if hasattr(theirs, "is_sharded_variable")
        else own[id(theirs)]
        for theirs in whole(pattern)
    ]
