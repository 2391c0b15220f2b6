"""What a Keras model was compiled with, of either Keras, and which of its steps are its own."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

LIBRARIES = ("tf_keras", "keras", "keras_hub")
STEPS = ("train_step", "test_step", "compute_loss", "compute_metrics")
"""The methods of a model that decide how it is trained and evaluated."""


@dataclass(frozen=True)
class Compiled:
    """The arguments of `model.compile`, as they were given.

    Attributes:
        loss: one loss, or several by output.
        loss_weights: how much each counts.
        metrics: one metric, several, or several by output.
        weighted_metrics: the same, of those that sample weights count in.
        optimizer: the optimizer; None: the model was not compiled.
    """

    loss: Any = None
    loss_weights: Any = None
    metrics: Any = None
    weighted_metrics: Any = None
    optimizer: Any = None


def compiled_with(model: Any) -> Compiled:
    """Return what a model was compiled with; of one that was not, nothing.

    Touches private names of both Kerases; tests/tasks/keras/test_as_fit.py fails when they move.
    """
    if not is_compiled(model):
        return Compiled()
    if type(model).__module__.startswith("keras.") or hasattr(model, "_compile_loss"):
        loss, metrics = model._compile_loss, model._compile_metrics
        user_loss = getattr(loss, "_user_loss", None)
    else:
        loss, metrics = model.compiled_loss, model.compiled_metrics
        user_loss = getattr(loss, "_user_losses", None)
    return Compiled(
        user_loss,
        getattr(loss, "_user_loss_weights", None),
        getattr(metrics, "_user_metrics", None),
        getattr(metrics, "_user_weighted_metrics", None),
        model.optimizer,
    )


def is_compiled(model: Any) -> bool:
    """Return whether a model was compiled."""
    by_keras = getattr(model, "compiled", False) or getattr(model, "_is_compiled", False)
    return by_keras or getattr(model, "optimizer", None) is not None


def own_steps(model: Any) -> dict[str, type]:
    """Return the steps that a model's class does not inherit from Keras: name -> class."""
    steps = {}
    for name in STEPS:
        base = next((base for base in type(model).__mro__ if name in vars(base)), None)
        if base and base.__module__.partition(".")[0] not in LIBRARIES:
            steps[name] = base
    return steps


def undecorated(model: Any, step: str) -> Any:
    """Return a step of a model without a `tf.function` around it: updates cannot leave that."""
    bound = getattr(model, step)
    inner = getattr(getattr(type(model), step), "python_function", None)
    return bound if inner is None else types.MethodType(inner, model)


def has_call(model: Any) -> bool:
    """Return whether a model can be called: a subclass without `call` has its steps alone."""
    return type(model).call.__qualname__ != "Model.call"


def library_of(model: Any) -> Any:
    """Return the Keras that a model is of."""
    if isinstance(model, tf.keras.layers.Layer):
        return tf.keras
    import keras

    return keras
