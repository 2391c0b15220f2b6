"""Metrics of tf_keras that a model updates itself: their value is that of one part of a batch."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from trainer.engine.graph.step.part_variables import isolate


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
