"""Updates of variables in a forward pass, such as moving statistics, as values instead.

With shards every forward pass of a step computes its update from the same old value, and their mean
is assigned once at the end. So no variable is written within a loop, where strategies that share
variables between replicas could not do it. And with several processes none is written before all
have added up: see `StepBoundary`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


def note_update(variable: tf.Variable, value: tf.Tensor, old: tf.Tensor) -> None:
    """Note the value that a forward pass would assign to a variable, if it is captured.

    Nothing else happens: outside of a step no forward pass may change a model.

    Args:
        variable: the variable.
        value: its new value.
        old: the value that the forward pass has read.
    """
    capturing: CapturedUpdates | None = getattr(_current, "capturing", None)
    if capturing is not None:
        # Behind a snapshot, which copies nothing: TensorFlow would take the last sum of the value,
        # and the sum over the replicas, as one sum in another order.
        value = tf.raw_ops.Snapshot(input=value - old if capturing.differences else value)
        capturing.note(variable, value)


class CapturedUpdates:
    """The values that variables were to be given, while a forward pass is traced.

    Args:
        variables: the variables.
        noted: whether the model notes its updates itself (`note_update`), and assigns nothing.
        differences: whether differences to the old values are kept; of noted updates alone.
        read: reads a variable that was not assigned to.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        *,
        noted: bool = False,
        differences: bool = False,
        read: Callable[[tf.Variable], tf.Tensor] = lambda variable: variable.read_value(),
    ) -> None:
        self._variables = variables
        self.differences = differences
        self._shadowed = () if noted else variables
        self._read = read
        self._values: dict[int, list[tf.Tensor]] = {}

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Keep what is assigned to the variables inside; they do not change.

        Raises:
            ConfigError: another replica's forward pass has not ended: they communicate within it.
        """
        if any("assign" in vars(variable) for variable in self._shadowed):
            raise ConfigError(
                "batch.shards: the model or its loss communicates between replicas, which cannot "
                "be done within a shard; add batch.shards=null"
            )
        for variable in self._shadowed:
            self._shadow(variable)
        outer = getattr(_current, "capturing", None)
        _current.capturing = self
        try:
            yield
        finally:
            _current.capturing = outer
            for variable in self._shadowed:
                for name in ("assign", "assign_add", "assign_sub"):
                    delattr(variable, name)

    def note(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Keep a value that is to be assigned, or added, to a variable."""
        self._values.setdefault(id(variable), []).append(value)

    def updated(self) -> list[int]:
        """Return which of the variables were assigned to, by their position."""
        return [i for i, variable in enumerate(self._variables) if id(variable) in self._values]

    def means(self) -> list[tf.Tensor]:
        """Return the mean of the values of each variable, float32; the old value if there is none.

        One that is updated by several calls of a layer has several values.
        """
        return [self.mean(position) for position in range(len(self._variables))]

    def mean(self, position: int) -> tf.Tensor:
        """Return the mean of the values of the variable at a position, likewise."""
        variable = self._variables[position]
        values = self._values.get(id(variable)) or [self._read(variable)]
        mean = tf.cast(values[0], tf.float32)
        for value in values[1:]:
            mean += tf.cast(value, tf.float32)
        return mean / len(values) if len(values) > 1 else mean

    def _shadow(self, variable: tf.Variable) -> None:
        def assign(value: Any, *args: Any, **options: Any) -> tf.Tensor:
            tensor = tf.convert_to_tensor(value, variable.dtype)
            self.note(variable, tensor)
            return tensor

        variable.assign = assign
        variable.assign_add = lambda delta, *args, **options: assign(variable.read_value() + delta)
        variable.assign_sub = lambda delta, *args, **options: assign(variable.read_value() - delta)
