"""What a model of Keras 3 must not do: it is called as a function of its variables' values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import keras
import tensorflow as tf

from trainer.errors import ConfigError

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


def check_model(model: keras.Model) -> None:
    """Refuse a model that cannot be trained here, as far as its layers tell.

    Raises:
        ConfigError: it is one.
    """
    layers = list(model._flatten_layers())
    unbuilt = [layer.name for layer in layers if not layer.built]
    if unbuilt:
        raise ConfigError(
            f"model: layer {unbuilt[0]} has no variables yet, so none could be trained or "
            "restored; give the model a keras.Input, or call it once before it is returned"
        )
    for layer in layers:
        strangers = [
            name
            for name, value in vars(layer).items()
            if any(isinstance(leaf, tf.Variable) for leaf in _leaves(value))
        ]
        if strangers:
            raise ConfigError(
                f"model: layer {layer.name} has the tf.Variable {strangers[0]}, which Keras 3 "
                "neither trains nor saves; make it with self.add_weight(...)"
            )
    if any(getattr(v, "overwrite_with_gradient", False) for v in model.weights):
        raise ConfigError(
            "model: float8 keeps its scales as gradients, which cannot be summed over replicas; "
            "use another dtype"
        )


@contextmanager
def checked_call() -> Iterator[None]:
    """Check the call of a model inside, which is given the values of all its variables.

    Raises:
        ConfigError: it reads a variable that is none of the model's, or `refuse` was called.
    """
    _current.refusal = None
    try:
        # Reads of the model's own variables are of values, which no tape sees.
        with tf.GradientTape() as tape:
            yield
    except ConfigError:
        if _current.refusal is None:
            raise
        # Keras raises another one, with what it knows about the call.
        raise _current.refusal from None
    if strangers := tape.watched_variables():
        raise ConfigError(
            f"model: the forward pass reads the variable {strangers[0].name} (shape "
            f"{list(strangers[0].shape)}), which is none of the model's weights, so it would be "
            "neither trained nor saved; make it with self.add_weight(...) in a layer, or give it "
            "trainable=False if it is a constant"
        )


def refuse(problem: str) -> NoReturn:
    """Refuse, from code that Keras calls, what a model does within `checked_call`.

    Raises:
        ConfigError: always.
    """
    _current.refusal = ConfigError(problem)
    raise _current.refusal


def _leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
