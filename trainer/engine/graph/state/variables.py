"""Variables: replicated ones, those split over parameter servers, and the loss scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


class SplitParameters(tf.distribute.ParameterServerStrategy):
    """Splits trainable variables over the parameter servers.

    All other variables are small, or belong to a shard and are placed with it. A split variable
    starts with the same values as an unsplit one: Keras would draw each shard's values for a layer
    of the shard's size.

    Args:
        split: returns the number of shards in each dimension of a variable, from its shape and
            type; one of `tf.distribute.experimental.partitioners`.
    """

    def __init__(
        self,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        split: Callable[..., list[int]],
    ) -> None:
        self._is_trainable = False
        super().__init__(
            resolver,
            lambda shape, dtype: split(shape, dtype) if self._is_trainable else [1] * shape.rank,
        )

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Make this strategy the current one."""
        with super().scope(), tf.variable_creator_scope(self._create):
            yield

    def _create(self, next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        self._is_trainable = bool(options.get("trainable"))
        value = options["initial_value"]
        if self._is_trainable and callable(value):
            options["initial_value"] = value()
        return next_creator(**options)


def whole(variables: Sequence[tf.Variable]) -> list[Any]:
    """Return variables as a checkpoint has them: a split one instead of its shards."""
    containers = [
        variable._sharded_container() if hasattr(variable, "_sharded_container") else variable
        for variable in variables
    ]
    return list({id(variable): variable for variable in containers}.values())


def pieces_of(variable: Any) -> list[tf.Variable]:
    """Return the pieces of a variable that parameter servers divide among them, or itself."""
    return list(getattr(variable, "variables", [variable]))


def split_alike(variables: Sequence[tf.Variable], pattern: Sequence[tf.Variable]) -> list[Any]:
    """Return variables, one for each of `pattern`, as a checkpoint has those.

    The result must be kept: nothing else holds it.
    """
    by_pattern = {id(other): variable for variable, other in zip(variables, pattern, strict=True)}
    return [
        tf.__internal__.distribute.ShardedVariable(
            [by_pattern[id(shard)] for shard in other.variables]
        )
        if hasattr(other, "is_sharded_variable")
        else by_pattern[id(other)]
        for other in whole(pattern)
    ]


class LossScale:
    """Dynamic loss scale of mixed_float16 (Micikevicius et al. 2018).

    It is halved on overflow, and doubled after 2,000 good steps, up to a limit: gradients of zero
    never overflow, and an infinite scale would have every later update dropped.

    Attributes:
        good_steps: steps without overflow since it last changed, int32.
    """

    INITIAL = 2.0**15
    LARGEST = 2.0**64
    GROWTH_STEPS = 2000

    def __init__(self) -> None:
        self.value = replicated(tf.constant(self.INITIAL), "loss_scale")
        self.good_steps = replicated(tf.constant(0), "good_steps")

    def update(self, finite: tf.Tensor) -> None:
        """Adjust the scale after a step, by whether its gradients were `finite`, bool scalar."""
        grow = tf.logical_and(finite, self.good_steps + 1 >= self.GROWTH_STEPS)
        growth = tf.where(tf.logical_and(grow, self.value < self.LARGEST), 2.0, 1.0)
        self.value.assign(tf.maximum(1.0, self.value * tf.where(finite, growth, 0.5)))
        self.good_steps.assign(
            tf.where(tf.logical_and(finite, tf.logical_not(grow)), self.good_steps + 1, 0)
        )


@contextmanager
def read_from_first_replica() -> Iterator[None]:
    """Have variables that replicas update by themselves read from the first one; in scope.

    A step averages them, so they hold the same on all replicas whenever they are read or saved.
    Their mean would be taken otherwise, and the mean of three equal numbers may be another number.
    """

    def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        if options.get("synchronization") == tf.VariableSynchronization.ON_READ:
            options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def replicated(value: tf.Tensor, name: str) -> tf.Variable:
    """Create a variable that every replica holds and updates in the same way."""
    return tf.Variable(
        value, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name=name
    )
