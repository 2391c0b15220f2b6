"""What an export serves of a model that cannot be called: the models that it is made of."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import Dataset, Sampling, Served

_FIRST = ("decoder", "generator", "student")
"""Parts that are what such a model is trained for."""


def served_parts(model: Any, dataset: Dataset, sampling: Sampling) -> Served:
    """Return a function for each part of a model that knows its inputs, by its attribute.

    Args:
        model: the user's, of either Keras.
        dataset: not used.
        sampling: not used.

    Raises:
        ConfigError: no part does.
    """
    parts = {
        name: part
        for name, part in vars(model).items()
        if not name.startswith("_") and callable(part) and getattr(part, "inputs", None)
    }
    if not parts:
        raise ConfigError(
            f"mode (export): {type(model).__name__} has no call, and no attribute that is a model "
            "with inputs; add a call to it"
        )
    functions = {name: _function(part) for name, part in parts.items()}
    first = next((name for name in _FIRST if name in functions), next(iter(functions)))
    return Served({"serving_default": functions[first], **functions})


def _function(part: Any) -> Any:
    specs = [
        tf.TensorSpec([None, *x.shape[1:]], tf.as_dtype(x.dtype), f"input_{i + 1}")
        for i, x in enumerate(part.inputs)
    ]

    def outputs(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.nest.flatten(part(list(inputs) if len(inputs) > 1 else inputs[0]))
        return {f"output_{i + 1}": value for i, value in enumerate(values)}

    return tf.function(outputs, autograph=False).get_concrete_function(*specs)
