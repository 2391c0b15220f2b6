"""Metrics that a model updates itself: their value is that of one part of a batch."""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from trainer.engine.graph.step.part_variables import isolate
from trainer.errors import ConfigError


def isolate_metrics(metrics: Iterable[Any]) -> set[int]:
    """Have metrics begin empty within `own_values`; return the ids of their variables."""
    variables = []
    for metric in metrics:
        variables += metric.variables
        # Keras' own waits for the other replicas to add their variables.
        object.__setattr__(metric, "result", types.MethodType(type(metric).result, metric))
    isolate(variables, begins_empty=True)
    return set(map(id, variables))


def metrics_of_model(model: Any) -> list[Any]:
    """Return the metrics of a model, those of what it was compiled with too."""
    parts = [part for part in model.submodules if isinstance(part, tf.keras.metrics.Metric)]
    return list({id(metric): metric for metric in [*parts, *model.metrics]}.values())


def added_metrics(model: Any) -> list[Any]:
    """Return the means that layers have added by `add_metric`, each once; none of Keras 3.

    Only tf_keras has that.
    """
    if not isinstance(model, tf.keras.layers.Layer):
        return []
    added = [metric for layer in model._flatten_layers() for metric in layer._metrics]
    each = {id(metric): metric for metric in added if isinstance(metric, tf.keras.metrics.Mean)}
    isolate_metrics(each.values())
    return list(each.values())


def refuse_others(model: Any, step: str, names: Sequence[str], library: Any) -> None:
    """Refuse metrics that are no means: the mean of their values over parts is another number.

    Args:
        model: the user's.
        step: its step that returns them.
        names: what it returns.
        library: the Keras that it is of.

    Raises:
        ConfigError: one is returned.
    """
    mean = library.metrics.Mean
    for metric in model.metrics:
        for inner in getattr(metric, "metrics", None) or [metric]:  # of Keras 3's compile
            is_mean = isinstance(inner, mean) and type(inner).result is mean.result
            if inner.name in names and not is_mean:
                raise ConfigError(
                    f"model: its {step} returns {inner.name} ({type(inner).__name__}), which is no "
                    "mean over examples, so it would depend on how the batch is cut; leave it out "
                    "of what the step returns and of compile"
                )
