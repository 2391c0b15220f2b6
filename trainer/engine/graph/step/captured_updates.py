"""Updates of variables in a forward pass, such as moving statistics, as values instead.

Every forward pass of a step with shards or micro-batches computes its update from the same old
value, and their mean is assigned once at the end. So no variable is written within a loop, where
strategies that share variables between replicas could not do it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from trainer.engine.graph.step.part_variables import READS
from trainer.errors import ConfigError

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


def note_update(variable: tf.Variable, value: tf.Tensor, old: tf.Tensor) -> None:
    """Note the value that a forward pass would assign to a variable, if it is captured.

    Nothing else happens: outside of a step no forward pass may change a model.

    Args:
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
        self._values: dict[int, tf.Tensor] = {}

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Keep what is assigned to the variables inside; they do not change.

        Raises:
            ConfigError: another replica's forward pass has not ended: they communicate within it.
        """
        if any("assign" in vars(variable) for variable in self._shadowed):
            raise ConfigError(
                "batch: the model or its loss communicates between replicas, which cannot be done "
                "within a part of a batch; add batch.shards=null and batch.accumulate=1"
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
                for name in (*READS, "assign", "assign_add", "assign_sub"):
                    vars(variable).pop(name, None)

    def note(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Keep a value that is to be assigned, or added, to a variable."""
        self._values[id(variable)] = value

    def updated(self) -> list[int]:
        """Return which of the variables were assigned to, by their position."""
        return [i for i, variable in enumerate(self._variables) if id(variable) in self._values]

    def values(self) -> list[tf.Tensor]:
        """Return the last value of each variable, float32, or the old one if none was assigned."""
        return [self.value(position) for position in range(len(self._variables))]

    def value(self, position: int) -> tf.Tensor:
        """Return the last value of the variable at a position, in the same way."""
        variable = self._variables[position]
        value = self._values.get(id(variable))
        return tf.cast(self._read(variable) if value is None else value, tf.float32)

    def _shadow(self, variable: tf.Variable) -> None:
        """Have a variable keep what is assigned to it for this pass alone, which reads it again."""

        def assign(value: Any, *args: Any, **options: Any) -> tf.Tensor:
            tensor = tf.convert_to_tensor(value, variable.dtype)
            self.note(variable, tensor)
            return tensor

        def reading(original: Callable[..., Any]) -> Callable[..., Any]:
            def read(*args: Any, **options: Any) -> Any:
                value = self._values.get(id(variable))
                return original(*args, **options) if value is None else value

            return read

        for name in READS:
            if hasattr(variable, name):
                setattr(variable, name, reading(getattr(variable, name)))
        variable.assign = assign
        variable.assign_add = lambda delta, *args, **options: assign(variable.read_value() + delta)
        variable.assign_sub = lambda delta, *args, **options: assign(variable.read_value() - delta)
