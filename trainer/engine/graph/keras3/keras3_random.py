"""Functions of `keras.random` within a step: they draw by those of `tf.random`.

Keras' own compute from the state of a `SeedGenerator`, one more variable to save and to keep equal
on all replicas. With a number as its seed a function draws the same at each step. What `tf.random`
has no function for takes a seed of the step: each part of the batch has its own.

Touches one private name of Keras, the module that holds the backend's random functions;
tests/engine/graph/keras3/test_keras3_model.py (-k private_names) fails when it moves.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import keras
import tensorflow as tf
from keras.src.backend import random as backend

from trainer.engine.graph.randomness.randomness import (
    BatchPart,
    batch_part,
    current_part,
    fold_seed,
    in_step,
    next_seed,
)
from trainer.errors import ConfigError

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


def refuse(problem: str) -> NoReturn:
    """Raise a ConfigError on what a model does in `refusals_as_they_are`."""
    _current.refusal = ConfigError(problem)
    raise _current.refusal


@contextmanager
def refusals_as_they_are() -> Iterator[None]:
    """Call Keras inside: it raises another error, with details of the call."""
    _current.refusal = None
    try:
        yield
    except ConfigError:
        if _current.refusal is None:
            raise
        raise _current.refusal from None


@functools.cache
def convert_draws() -> None:
    """Have the random functions of Keras draw by those of TensorFlow in a step, from now on."""
    for name, function in _FUNCTIONS.items():
        setattr(backend, name, _converted(getattr(backend, name), function))
    original = keras.random.SeedGenerator.next

    def next_of(generator: keras.random.SeedGenerator, **options: Any) -> Any:
        if _part("SeedGenerator.next") is None:
            return original(generator, **options)
        return next_seed()

    keras.random.SeedGenerator.next = next_of
    original_seed = backend.draw_seed

    def draw_seed(seed: Any) -> Any:
        part = _part("a function")
        if part is None or not isinstance(seed, int):
            return original_seed(seed)
        return fold_seed(seed, part.number)

    backend.draw_seed = draw_seed


def _part(name: str) -> BatchPart | None:
    """Return the part that is drawn for, or None outside a step."""
    part = current_part()
    if part is None and in_step():
        refuse(
            f"model: {name} of keras.random is called in vectorized_map, which would draw the same "
            "at each step; draw for the whole batch before it"
        )
    return part


def _converted(
    original: Callable[..., Any], function: Callable[..., tf.Tensor]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def draw(*args: Any, seed: Any = None, **options: Any) -> Any:
        part = _part(original.__name__)
        if part is None:
            return original(*args, seed=seed, **options)
        if not isinstance(seed, int):
            return function(*args, **options)
        with batch_part(replace(part, seed=lambda: fold_seed(seed), num_draws=0)):
            return function(*args, **options)

    return draw


def _normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None) -> tf.Tensor:
    return tf.random.normal(shape, mean, stddev, dtype or keras.config.floatx())


def _truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None
) -> tf.Tensor:
    return tf.random.truncated_normal(shape, mean, stddev, dtype or keras.config.floatx())


def _uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None) -> tf.Tensor:
    return tf.random.uniform(shape, minval, maxval, dtype or keras.config.floatx())


def _randint(shape: Any, minval: Any, maxval: Any, dtype: Any = "int32") -> tf.Tensor:
    return tf.cast(tf.random.uniform(shape, minval, maxval, tf.int64), dtype)


def _categorical(logits: Any, num_samples: Any, dtype: Any = "int64") -> tf.Tensor:
    return tf.cast(tf.random.categorical(logits, num_samples), dtype)


def _dropout(inputs: Any, rate: Any, noise_shape: Any = None) -> tf.Tensor:
    return tf.zeros_like(inputs) if rate == 1.0 else tf.nn.dropout(inputs, rate, noise_shape)


_FUNCTIONS: Mapping[str, Callable[..., tf.Tensor]] = {
    "normal": _normal,
    "truncated_normal": _truncated_normal,
    "uniform": _uniform,
    "randint": _randint,
    "categorical": _categorical,
    "dropout": _dropout,
}
