"""Functions such as `tf.random.normal` within a step: what they draw is the global batch's too.

TensorFlow's own count in their kernels, which no checkpoint holds, and each replica has a counter
of its own. While a step is traced they are replaced below their public names, where Keras' backend,
`tf.nn.dropout` and other libraries call them too. What cannot be converted stays what it is, and
`graph_check` refuses it.

Touches private names of TensorFlow, the functions of `gen_random_ops`;
tests/engine/graph/randomness/test_random_functions.py fails when they move.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.ops import gen_random_ops

from trainer.engine.graph.randomness.random_layers import LayerDraws, static_shape
from trainer.engine.graph.randomness.randomness import BatchPart, converting_part

_Options: TypeAlias = Mapping[str, Any]
_Conversion: TypeAlias = tuple[
    Callable[[_Options], Any], Callable[[list[int], _Options], tf.Tensor]
]
"""The shape of what an operation of these arguments draws, and a function that draws it."""

_draws = LayerDraws(2**31 - 2)  # more than the layers that a model has


@functools.cache
def convert_draws() -> None:
    """Have TensorFlow's random functions draw for the part that is traced, from now on."""
    for name, conversion in _CONVERSIONS.items():
        setattr(gen_random_ops, name, _converted(getattr(gen_random_ops, name), *conversion))


def _converted(
    original: Callable[..., Any],
    shape_of: Callable[[_Options], Any],
    draw: Callable[[list[int], _Options], tf.Tensor],
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def convert(*args: Any, **options: Any) -> Any:
        part = converting_part()
        if part is None:
            return original(*args, **options)
        arguments = signature.bind(*args, **options).arguments
        shape = static_shape(shape_of(arguments))
        if shape is None or _is_ambiguous(shape, part, shuffles="value" in arguments):
            return original(*args, **options)
        return draw(shape, arguments)

    return convert


def _is_ambiguous(shape: list[int], part: BatchPart, *, shuffles: bool) -> bool:
    """Return whether a draw may belong to the examples otherwise than by its first dimension.

    Or by it, where it permutes them: those of other replicas are not here.
    """
    if not shape or 1 in (part.parts, part.size) or (shape[0] == part.size and not shuffles):
        return False
    return shape[0] % part.size == 0 or part.size in shape[1:]


def _truncated_normal(shape: list[int], options: _Options) -> tf.Tensor:
    """Draw within two standard deviations, by the inverse of the distribution's function.

    Values are rejected otherwise, which shifts those after them.
    """
    dtype = tf.as_dtype(options["dtype"])
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    area = _draws.random_uniform(shape, -1.0, 1.0, wide) * math.erf(math.sqrt(2.0))
    return tf.cast(math.sqrt(2.0) * tf.math.erfinv(area), dtype)


def _integers(shape: list[int], options: _Options) -> tf.Tensor:
    low, high = tf.convert_to_tensor(options["minval"]), tf.convert_to_tensor(options["maxval"])
    return _draws.random_uniform(shape, low, high, low.dtype)


def _noise_shape(options: _Options) -> list[Any]:
    rows, classes = tf.unstack(tf.shape(options["logits"]))
    return [rows, options["num_samples"], classes]


def _multinomial(shape: list[int], options: _Options) -> tf.Tensor:
    """Draw classes, as the largest sums of a logit and Gumbel noise."""
    uniform = tf.maximum(_draws.random_uniform(shape, dtype=tf.float32), 1e-30)
    sums = tf.cast(options["logits"], tf.float32)[:, None] - tf.math.log(-tf.math.log(uniform))
    return tf.argmax(sums, axis=2, output_type=options.get("output_dtype", tf.int64))


def _shuffle(shape: list[int], options: _Options) -> tf.Tensor:
    keys = _draws.random_uniform(shape, dtype=tf.int32)
    return tf.gather(options["value"], tf.argsort(keys, stable=True))


def _shape(options: _Options) -> Any:
    return options["shape"]


_CONVERSIONS: Mapping[str, _Conversion] = {
    "random_standard_normal": (
        _shape,
        lambda shape, options: _draws.random_normal(shape, dtype=options["dtype"]),
    ),
    "random_uniform": (
        _shape,
        lambda shape, options: _draws.random_uniform(shape, dtype=options["dtype"]),
    ),
    "random_uniform_int": (_shape, _integers),
    "truncated_normal": (_shape, _truncated_normal),
    "multinomial": (_noise_shape, _multinomial),
    "random_shuffle": (lambda options: tf.shape(options["value"])[:1], _shuffle),
}
