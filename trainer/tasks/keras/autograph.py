"""AutoGraph for the user's own functions, which tf_keras converts and Keras 3 does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status

_LIBRARIES = ("tensorflow", "tf_keras", "keras")


def converted(function: Callable[..., Any], library: Any) -> Callable[..., Any]:
    """Return a function of the user's as its Keras calls it: of tf_keras, with AutoGraph.

    Args:
        function: a function or a bound method.
    """
    module = getattr(function, "__module__", None) or ""
    if library is not tf.keras or module.partition(".")[0] in _LIBRARIES:
        return function
    return tf.__internal__.autograph.tf_convert(function, enabled())


def enabled() -> ControlStatusCtx:
    """Return a context in which tf_keras converts the functions of models and losses."""
    return ControlStatusCtx(Status.ENABLED)
