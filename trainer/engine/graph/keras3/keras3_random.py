"""What layers of Keras 3 draw: their slice of what the global batch would draw.

A layer of Keras 3 keeps a `SeedGenerator`, whose state would be one more variable to save and to
keep alike on all replicas. While one of its models is called here, a generator stands for a number
instead, and its draws are those of `random_layers.LayerDraws`.

Touches one private name of Keras, the module that holds the backend's random functions;
tests/engine/graph/keras3/test_keras3_model.py (-k private_names) fails when it moves.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import random as backend

from trainer.engine.graph.keras3.keras3_checks import refuse
from trainer.engine.graph.randomness.random_layers import LayerDraws

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


def _uniform(draws: LayerDraws, options: dict[str, Any]) -> tf.Tensor:
    return draws.random_uniform(
        options["shape"], options["minval"], options["maxval"], _dtype(options)
    )


def _normal(draws: LayerDraws, options: dict[str, Any]) -> tf.Tensor:
    return draws.random_normal(
        options["shape"], options["mean"], options["stddev"], _dtype(options)
    )


def _randint(draws: LayerDraws, options: dict[str, Any]) -> tf.Tensor:
    drawn = draws.random_uniform(options["shape"], options["minval"], options["maxval"], "int64")
    return tf.cast(drawn, options["dtype"])


def _dropout(draws: LayerDraws, options: dict[str, Any]) -> tf.Tensor:
    inputs = tf.convert_to_tensor(options["inputs"])
    if options["rate"] == 0.0:
        return inputs
    if options["rate"] == 1.0:
        return tf.zeros_like(inputs)
    shape = options["noise_shape"]
    if shape is not None:
        sizes = [tf.shape(inputs)[i] if n is None else n for i, n in enumerate(inputs.shape)]
        shape = [own if size is None else size for size, own in zip(shape, sizes, strict=True)]
    return draws.dropout(inputs, options["rate"], shape)


def _dtype(options: Mapping[str, Any]) -> str:
    return options["dtype"] or keras.config.floatx()


_SLICED: Mapping[str, Callable[[LayerDraws, dict[str, Any]], tf.Tensor]] = {
    "uniform": _uniform,
    "normal": _normal,
    "randint": _randint,
    "dropout": _dropout,
}
"""The functions of which a slice of the global batch's draw can be drawn."""

_SEEDED = ("truncated_normal", "categorical", "gamma", "binomial", "beta", "shuffle")
"""The others: each part of the batch has a seed of its own."""


@contextmanager
def draws_of(numbers: Mapping[int, int]) -> Iterator[None]:
    """Draw what is traced inside for the part of the batch that is traced.

    Args:
        numbers: id of the state of a seed generator -> its number among all random layers.
    """
    _replace_functions()
    outer = getattr(_current, "numbers", None)
    _current.numbers = numbers
    try:
        yield
    finally:
        _current.numbers = outer


def seed_of(number: int) -> tf.Tensor:
    """Return the state that a seed generator has in the part of the batch that is traced.

    Keras adds 1 to the second word at each draw: the first alone tells two generators apart.
    """
    seed = LayerDraws(number).seed()
    return tf.stack([tf.math.floormod(seed[0] ^ seed[1], tf.int32.max - 1), tf.zeros_like(seed[0])])


@functools.cache
def _replace_functions() -> None:
    """Have the backend's random functions ask for their number first, from now on."""
    for name in (*_SLICED, *_SEEDED):
        setattr(backend, name, _asking(name, getattr(backend, name)))


def _asking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def draw(*args: Any, **options: Any) -> Any:
        numbers = getattr(_current, "numbers", None)
        if numbers is None:
            return original(*args, **options)
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        seed = bound.arguments["seed"]
        number = numbers.get(id(getattr(seed, "state", None)))
        if number is None:
            kind = "no seed" if seed is None else f"the seed {seed}"
            refuse(
                f"model: keras.random.{name} was called with {kind}, so no run could be continued "
                "with the same numbers; pass a keras.random.SeedGenerator that the layer has as an "
                "attribute"
            )
        if name not in _SLICED:
            return original(*args, **options)
        return _SLICED[name](LayerDraws(number), dict(bound.arguments))

    return draw
