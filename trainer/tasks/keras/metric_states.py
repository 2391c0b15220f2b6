"""The metrics of a model as sums: what their variables are after each part of a batch.

A part's metrics begin empty. What their variables hold afterwards is added up over parts, steps and
processes, and Keras' own `result` makes the reported value of the total.

Touches what `trainer.engine.graph.step.part_variables` names, and `StatelessScope` of Keras 3.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.graph.step.part_variables import Assigned, isolate, own_values
from trainer.tasks.keras.compiled import LIBRARIES


class MetricStates:
    """The metrics of a model, those of what it was compiled with first.

    Attributes:
        metrics: each once.

    Args:
        model: the user's, of either Keras, whose metrics have their variables.
    """

    def __init__(self, model: Any) -> None:
        self._is_keras3 = not isinstance(model, tf.keras.layers.Layer)
        metrics = list(model.metrics)
        if not self._is_keras3:
            metrics += [x for x in model.submodules if isinstance(x, tf.keras.metrics.Metric)]
        # What a model was compiled with is not built if its own steps do not use it.
        metrics = [x for x in metrics if not hasattr(x, "metrics") or x.built]
        self.metrics = list({id(metric): metric for metric in metrics}.values())
        variables = [v for metric in self.metrics for v in metric.variables]
        self.variables = list({id(v): v for v in variables}.values())
        if not self._is_keras3:
            for metric in self.metrics:
                # Keras' own waits for the other replicas to add their variables.
                object.__setattr__(metric, "result", types.MethodType(type(metric).result, metric))
            isolate(self.variables, self.begin_of)
        self._current = threading.local()  # replicas are traced in one thread each
        self.ids = set(map(id, self.variables))
        self._sizes = [int(np.prod(v.shape, dtype=np.int64)) for v in self.variables]

    @property
    def _each(self) -> list[Any]:
        """The metrics, those within what a model was compiled with by themselves."""
        return [x for metric in self.metrics for x in getattr(metric, "metrics", None) or [metric]]

    @property
    def has_own(self) -> bool:
        """Whether a metric is of a class of the user's, which may add nothing up."""
        return any(type(x).__module__.partition(".")[0] not in LIBRARIES for x in self._each)

    @property
    def groups(self) -> list[list[int]]:
        """The numbers of the variables of each metric."""
        number = {id(v): i for i, v in enumerate(self.variables)}
        return [[number[id(v)] for v in x.variables if id(v) in number] for x in self._each]

    @contextmanager
    def beginning(self, vector: tf.Tensor) -> Iterator[None]:
        """Have the variables hold other numbers than zeros when a part inside begins, [size]."""
        parts = zip(self.variables, self.divided(vector), strict=True)
        self._current.values = {
            id(v): tf.cast(tf.reshape(part, v.shape), v.dtype) for v, part in parts
        }
        try:
            yield
        finally:
            self._current.values = {}

    def begin_of(self, variable: Any) -> tf.Tensor:
        """Return what a variable holds when a part begins."""
        value = getattr(self._current, "values", {}).get(id(variable))
        return tf.zeros(variable.shape, variable.dtype) if value is None else value

    @property
    def size(self) -> int:
        """How many numbers the variables hold."""
        return sum(self._sizes)

    def of_part(self, assigned: Any) -> tf.Tensor:
        """Return what the variables hold after a part, [size] float32.

        Args:
            assigned: what `own_values` yielded, or the scope of a model of Keras 3.
        """
        values = []
        for variable, size in zip(self.variables, self._sizes, strict=True):
            if self._is_keras3:
                value = assigned.get_current_value(variable)
            else:
                entry = assigned.get(id(variable))
                value = None if entry is None else entry.value
            if value is None:
                value = self.begin_of(variable)
            values.append(tf.reshape(tf.cast(tf.convert_to_tensor(value), tf.float32), [size]))
        return tf.concat(values, axis=0) if values else tf.zeros([0])

    def spread(self, numbers: Sequence[float]) -> np.ndarray:
        """Return one number a variable for each number that it holds, [size] float32."""
        return np.repeat(np.asarray(numbers, np.float32), self._sizes)

    def divided(self, vector: Any) -> list[Any]:
        """Return the part of a vector, [size], that belongs to each variable."""
        ends = np.cumsum([0, *self._sizes])
        return [vector[start:end] for start, end in pairwise(ends)]

    def results(self, totals: np.ndarray) -> dict[str, float]:
        """Return the value of each metric by name, as Keras computes it.

        Args:
            totals: what its variables hold, [size] float64.
        """
        with tf.device("CPU:0"):
            return numbers_of(self._results(tf.constant(totals, tf.float64)))

    # In a graph: eager operations read variables past what stands in for them.
    @tf.function(autograph=False)
    def _results(self, totals: tf.Tensor) -> dict[str, Any]:
        values = [
            tf.cast(tf.reshape(part, v.shape), v.dtype)
            for v, part in zip(self.variables, self.divided(totals), strict=True)
        ]
        pairs = list(zip(self.variables, values, strict=True))
        if self._is_keras3:
            import keras

            with keras.StatelessScope(pairs):
                return {metric.name: metric.result() for metric in self.metrics}
        with own_values() as held:
            held.update({id(v): Assigned(v, value, value) for v, value in pairs})
            return {metric.name: metric.result() for metric in self.metrics}

    def directions(self, direction_of: Callable[[str], str | None]) -> dict[str, str]:
        """Return which direction of each value is better, where its name or class tells.

        Args:
            direction_of: returns it of such a name.
        """
        kinds = {metric.name: type(metric).__name__ for metric in self._each}
        found = {name: direction_of(name) for name in self.names()}
        found |= {name: way for name, kind in kinds.items() if (way := direction_of(kind))}
        return {name: way for name, way in found.items() if way}

    def names(self) -> list[str]:
        """Return the names of all values that the metrics have."""
        return list(self.results(np.zeros([self.size])))


def numbers_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return results by name: of several numbers each has its own, such as `f1/0`."""
    numbers: dict[str, float] = {}
    for name, result in results.items():
        if isinstance(result, Mapping):
            numbers |= numbers_of(result)
            continue
        array = np.asarray(result, np.float64)
        if array.ndim == 0:
            numbers[name] = float(array)
        else:
            numbers |= {f"{name}/{i}": float(value) for i, value in enumerate(array.ravel())}
    return numbers
