"""Variables of tf_keras that a part of a batch assigns to: the part keeps the value for itself.

A step of a model's own assigns to moving statistics, averages and metrics as if it were alone. Here
it runs for each part of the global batch, side by side with others: what it assigns it reads
again, and nobody else does. What becomes of the values is decided when all parts have ended.

Touches private names of TensorFlow's variables (`_dense_var_to_tensor`, `_get`);
tests/tasks/keras/test_as_fit.py fails when they move.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

READS = ("read_value", "value", "_dense_var_to_tensor", "_get")

# Replicas and shards are traced in one thread each, hence thread-local.
_current = threading.local()


class Assigned(NamedTuple):
    """What a part has assigned to a variable.

    Attributes:
        variable: the variable, which has not changed.
        old: the value that it has.
    """

    variable: tf.Variable
    value: tf.Tensor
    old: tf.Tensor


@contextmanager
def own_values() -> Iterator[dict[int, Assigned]]:
    """Have isolated variables keep what is assigned inside apart; yield that, by id."""
    outer = getattr(_current, "values", None)
    _current.values = {}
    try:
        yield _current.values
    finally:
        _current.values = outer


@contextmanager
def shared_values() -> Iterator[None]:
    """Read and assign the variables themselves inside, as an optimizer does for all parts."""
    outer = getattr(_current, "values", None)
    _current.values = None
    try:
        yield
    finally:
        _current.values = outer


def isolate(
    variables: Iterable[tf.Variable], begin: Callable[[tf.Variable], tf.Tensor] | None = None
) -> None:
    """Isolate variables within `own_values`, from now on.

    Args:
        begin: returns what a part begins with; None: with the variable's value.
    """
    for variable in variables:
        if "assign_add" not in vars(variable):
            _isolate(variable, begin)


def _isolate(variable: Any, begin: Callable[[tf.Variable], tf.Tensor] | None) -> None:
    originals = {
        name: getattr(variable, name)
        for name in (*READS, "assign", "assign_add", "assign_sub")
        if hasattr(variable, name)
    }

    def current() -> tf.Tensor | None:
        values = getattr(_current, "values", None)
        if values is None:
            return None
        if id(variable) in values:
            return values[id(variable)].value
        return None if begin is None else begin(variable)

    def reading(name: str) -> Callable[..., Any]:
        def read(*args: Any, **options: Any) -> Any:
            value = current()
            return originals[name](*args, **options) if value is None else value

        return read

    def changing(name: str, change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Any:
        def assign(value: Any, *args: Any, **options: Any) -> Any:
            values = getattr(_current, "values", None)
            if values is None:
                return originals[name](value, *args, **options)
            before = current()
            old = originals["read_value"]() if before is None else before
            new = change(old, tf.cast(tf.convert_to_tensor(value), variable.dtype))
            first = values[id(variable)].old if id(variable) in values else old
            values[id(variable)] = Assigned(variable, new, first)
            return new

        return assign

    for name in originals.keys() & set(READS):
        setattr(variable, name, reading(name))
    variable.assign = changing("assign", lambda old, value: value)
    variable.assign_add = changing("assign_add", tf.add)
    variable.assign_sub = changing("assign_sub", tf.subtract)
