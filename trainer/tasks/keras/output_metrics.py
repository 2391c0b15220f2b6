"""Metrics of Keras: those that are means, for each example; all others over a whole split."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.tasks.keras.autograph import converted
from trainer.tasks.keras.outputs import aligned, by_output

_ACCURACY = ("accuracy", "acc")
_CROSS_ENTROPY = ("crossentropy", "ce")


@dataclass(frozen=True)
class OutputMetric:
    """A metric of one output.

    Attributes:
        name: under which it is reported.
        output: number of the output.
        is_weighted: whether sample weights count.
        choose: returns its function from a label and an output; None: it is no mean.
        metric: the object of Keras, if it is no mean.
    """

    name: str
    output: int
    is_weighted: bool
    choose: Callable[[tf.Tensor, tf.Tensor], Callable[..., tf.Tensor]] | None = None
    metric: Any = None

    @property
    def kind(self) -> str:
        """The name that tells which direction is better."""
        return self.name if self.metric is None else type(self.metric).__name__

    def per_example(
        self, label: tf.Tensor, output: tf.Tensor, sample_weight: tf.Tensor | None
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Return the metric of each example, [B] float32; weighted, its sum and weight."""
        assert self.choose is not None
        label = aligned(label, output)
        values = tf.cast(self.choose(label, output)(label, output), tf.float32)
        means = tf.reduce_mean(tf.reshape(values, [output.shape[0], -1]), axis=1)
        if not self.is_weighted or sample_weight is None:
            return means
        weights = tf.cast(sample_weight, tf.float32)
        return means * weights, weights


def metrics_of(
    key: str, metrics: Any, names: Sequence[str], library: Any, *, is_weighted: bool = False
) -> list[OutputMetric]:
    """Return the metrics of all outputs.

    Args:
        key: where they come from, for messages.
        metrics: names, functions or objects of Keras: one or a list for all outputs, or by output.
        names: the outputs.
        library: the Keras that knows the names.
        is_weighted: whether sample weights count.

    Raises:
        ConfigError: one is unknown, or two have the same name.
    """
    if metrics is None:
        return []
    each = by_output(key, metrics, names, is_list=True)
    return [
        _metric(key, metric, output, names, library, is_weighted)
        for output, own in enumerate(each)
        for metric in tf.nest.flatten(own)
        if metric is not None
    ]


def _metric(
    key: str, metric: Any, output: int, names: Sequence[str], library: Any, is_weighted: bool
) -> OutputMetric:
    prefix = f"{names[output]}_" if len(names) > 1 else ""
    if isinstance(metric, str) and metric in (*_ACCURACY, *_CROSS_ENTROPY):
        kind = "accuracy" if metric in _ACCURACY else "crossentropy"
        return OutputMetric(f"{prefix}{metric}", output, is_weighted, _by_shape(kind, library))
    name = metric if isinstance(metric, str) else None
    if name is not None:
        metric = _get(library, name)
        if not callable(metric):
            raise ConfigError(
                f"{key} ({name}) is no metric of Keras; write its name, such as accuracy or AUC, "
                "or a node with _target_"
            )
    if inspect.isclass(metric):
        metric = metric()
    if not hasattr(metric, "update_state"):
        name = name or str(getattr(metric, "__name__", type(metric).__name__))
        function = converted(metric, library)
        return OutputMetric(f"{prefix}{name}", output, is_weighted, lambda *_: function)
    shown = f"{prefix}{name or metric.name}"
    mean = library.metrics.MeanMetricWrapper
    if isinstance(metric, mean) and type(metric).update_state is mean.update_state:
        function, options = metric._fn, metric._fn_kwargs
        return OutputMetric(
            shown, output, is_weighted, lambda *_: lambda y, p: function(y, p, **options)
        )
    return OutputMetric(shown, output, is_weighted, metric=metric)


def _get(library: Any, name: str) -> Any:
    """Return a metric of Keras by its name; something that cannot be called if there is none."""
    try:
        return library.metrics.get(name)
    except ValueError:
        return None


def _by_shape(kind: str, library: Any) -> Callable[[tf.Tensor, tf.Tensor], Any]:
    """Return what chooses the function that `accuracy` stands for, as Keras does."""

    def choose(label: tf.Tensor, output: tf.Tensor) -> Any:
        is_sparse = label.shape.rank < output.shape.rank or (
            label.shape[-1] == 1 and output.shape[-1] > 1
        )
        if output.shape[-1] == 1:
            name = f"binary_{kind}"
        else:
            name = f"sparse_categorical_{kind}" if is_sparse else f"categorical_{kind}"
        return getattr(library.metrics, name)

    return choose


@dataclass(eq=False)
class WholeSplitMetrics:
    """Metrics that are no means, computed once over all examples of a split, in their order.

    Attributes:
        metrics: those that are no means.
    """

    metrics: Sequence[OutputMetric]

    def __post_init__(self) -> None:
        # Copies, where Keras' metrics have their variables: those of the model are replicated.
        with tf.device("CPU:0"):
            self._copies = [
                type(each.metric).from_config(each.metric.get_config()) for each in self.metrics
            ]

    def values(self, rows: Iterator[Mapping[str, np.ndarray]]) -> dict[str, float]:
        """Return the values by name.

        Args:
            rows: blocks of `label/<i>`, `output/<i>` for output i, and maybe `sample_weight`.
        """
        for copy in self._copies:
            copy.reset_state()
        for block in rows:
            with tf.device("CPU:0"):
                for each, copy in zip(self.metrics, self._copies, strict=True):
                    weight = block.get("sample_weight") if each.is_weighted else None
                    output = tf.constant(block[f"output/{each.output}"])
                    label = aligned(tf.constant(block[f"label/{each.output}"]), output)
                    copy.update_state(label, output, sample_weight=weight)
        numbers: dict[str, float] = {}
        for each, copy in zip(self.metrics, self._copies, strict=True):
            numbers |= _numbers(each.name, copy.result())
        return numbers


def _numbers(name: str, result: Any) -> dict[str, float]:
    """Return a result by name: of several numbers each has its own, such as `f1/0`."""
    if isinstance(result, Mapping):
        return {f"{name}/{key}": float(value) for key, value in result.items()}
    array = np.asarray(result, np.float64)
    if array.ndim == 0:
        return {name: float(array)}
    return {f"{name}/{i}": float(value) for i, value in enumerate(array.ravel())}
