"""Metrics of tf_keras in a step of a model's own: each part of a batch begins with empty ones.

A metric of Keras adds to variables, from batch to batch. Here its value is that of one part of one
batch, and the engine averages these. So nothing needs to be saved, and no layout counts otherwise.
Metrics of Keras 3 do the same in a stateless scope; see `Keras3Model.own_step`.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# Replicas and shards are traced in one thread each, hence thread-local.
_current = threading.local()


@contextmanager
def empty_metrics() -> Iterator[None]:
    """Have isolated metrics begin empty inside."""
    outer = getattr(_current, "values", None)
    _current.values = {}
    try:
        yield
    finally:
        _current.values = outer


def isolate(metrics: Iterable[Any]) -> None:
    """Have metrics keep, within `empty_metrics`, what they count apart from their variables."""
    for metric in metrics:
        ids = {id(variable) for variable in metric.variables}
        for name, value in list(vars(metric).items()):
            if id(value) in ids:
                object.__setattr__(metric, name, _PartVariable(value))
        # Keras' own waits for the other replicas to add their variables.
        object.__setattr__(metric, "result", types.MethodType(type(metric).result, metric))


class _PartVariable:
    """A variable of a metric: within `empty_metrics` a tensor that begins with zeros."""

    def __init__(self, variable: tf.Variable) -> None:
        self._variable = variable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._variable, name)

    def read_value(self) -> tf.Tensor:
        values = getattr(_current, "values", None)
        if values is None:
            return self._variable.read_value()
        zeros = tf.zeros(self._variable.shape, self._variable.dtype)
        return values.setdefault(id(self), zeros)

    value = numpy = read_value

    def assign(self, value: Any, *args: Any, **options: Any) -> tf.Tensor:
        if getattr(_current, "values", None) is None:
            return self._variable.assign(value, *args, **options)
        _current.values[id(self)] = tf.convert_to_tensor(value, self._variable.dtype)
        return _current.values[id(self)]

    def assign_add(self, delta: Any, *args: Any, **options: Any) -> tf.Tensor:
        return self.assign(self.read_value() + tf.cast(delta, self._variable.dtype))

    def assign_sub(self, delta: Any, *args: Any, **options: Any) -> tf.Tensor:
        return self.assign(self.read_value() - tf.cast(delta, self._variable.dtype))

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        value = self.read_value()
        return value if dtype is None else tf.cast(value, dtype)

    def __add__(self, other: Any) -> tf.Tensor:
        return self.read_value() + other

    def __radd__(self, other: Any) -> tf.Tensor:
        return other + self.read_value()

    def __sub__(self, other: Any) -> tf.Tensor:
        return self.read_value() - other

    def __mul__(self, other: Any) -> tf.Tensor:
        return self.read_value() * other

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> tf.Tensor:
        return self.read_value() / other

    def __getitem__(self, key: Any) -> tf.Tensor:
        return self.read_value()[key]
