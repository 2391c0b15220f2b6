"""Calls a model that must return one tensor of a known shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError


def call(
    model: tf.keras.Model,
    features: tf.Tensor,
    *,
    training: bool,
    shape: Sequence[int | None] | None,
    fix: str,
) -> tf.Tensor:
    """Return what a model makes of features, [B, *shape] float32.

    Args:
        model: the model.
        features: [B, ...].
        training: whether this is a step of the training.
        shape: shape of the outputs of one example; None: any.
        fix: what to do about a model of other outputs, for the message.

    Raises:
        ConfigError: the model returns something else.
    """
    outputs = model(features, training=training)
    if not tf.is_tensor(outputs) or not outputs.shape[1:].is_compatible_with(shape):
        raise ConfigError(
            f"model: the task takes one output {_shape([None, *(shape or ())])}, the model returns "
            f"{_in_words(outputs)}; {fix}"
        )
    return tf.cast(outputs, tf.float32)


def _in_words(outputs: Any) -> str:
    if outputs is None:
        return "None"
    if isinstance(outputs, Mapping):
        each = ", ".join(f"{name} {_in_words(value)}" for name, value in outputs.items())
        return f"a dict of {len(outputs)}: {each}"
    if isinstance(outputs, Sequence):
        each = ", ".join(map(_in_words, outputs))
        return f"a list of {len(outputs)}: {each}"
    return _shape(outputs.shape) if tf.is_tensor(outputs) else type(outputs).__name__


def _shape(shape: Sequence[int | None]) -> str:
    return f"[{', '.join(['B', *map(str, shape[1:])])}]"
