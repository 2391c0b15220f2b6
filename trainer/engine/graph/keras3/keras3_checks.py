"""What a model of Keras 3 must not do: it is called as a function of its variables' values.

Touches one private name of Keras, the module that holds the backend's `remat`;
tests/engine/graph/keras3/test_keras3_model.py (-k private_names) fails when it moves.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import keras
import tensorflow as tf
from keras.src.backend import core as backend

from trainer.errors import ConfigError

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


def check_model(model: keras.Model) -> None:
    """Raise a ConfigError if a model cannot be trained here, as far as its layers tell."""
    layers = list(model._flatten_layers())
    # The table of a TextVectorization is never called itself; it has no variables.
    unbuilt = [x.name for x in layers if not (x.built or hasattr(x, "lookup_table"))]
    if unbuilt:
        raise ConfigError(
            f"model: layer {unbuilt[0]} has no variables yet, so none could be trained or "
            "restored; give the model a keras.Input, or call it once before it is returned"
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
        ConfigError: it has Python ask for the value of a tensor, or `refuse` was called.
    """
    _current.refusal = None
    _current.calls = True
    try:
        yield
    except ConfigError:
        if _current.refusal is None:
            raise
        # Keras raises another one, with what it knows about the call.
        raise _current.refusal from None
    except tf.errors.OperatorNotAllowedInGraphError as error:
        place = re.search(r"when calling ([\w.]+\(\))", str(error))
        raise ConfigError(
            f"model: {place[1] if place else 'the forward pass'} asks in Python for the value of a "
            "tensor (if, while, for, and, not), which is not known when the step is compiled; use "
            "keras.ops.cond, keras.ops.where, keras.ops.while_loop or keras.ops.logical_and"
        ) from error
    finally:
        _current.calls = False


def refuse(problem: str) -> NoReturn:
    """Raise a ConfigError, from code that Keras calls, on what a model does in `checked_call`."""
    _current.refusal = ConfigError(problem)
    raise _current.refusal


@functools.cache
def refuse_remat() -> None:
    """Have what `keras.remat` makes from now on refuse to run within `checked_call`.

    It computes again from the variables that were read, and values are none: their gradients would
    be lost without an error.
    """
    original = backend.remat

    def remat(function: Callable[..., Any]) -> Callable[..., Any]:
        computing_again = original(function)

        def call(*args: Any, **options: Any) -> Any:
            if getattr(_current, "calls", False):
                refuse(
                    "model: keras.remat gives the weights within it no gradient here; build the "
                    "model without keras.remat and keras.RematScope (batch.accumulate saves memory "
                    "too)"
                )
            return computing_again(*args, **options)

        return call

    backend.remat = remat
