"""Functions such as `tf.random.normal` within a step: what they draw is the global batch's too.

TensorFlow's own count in their kernels, which no checkpoint holds, and each replica has a counter
of its own. While a step is traced they are replaced below their public names, where Keras' backend,
`tf.nn.dropout` and TensorFlow Probability call them too. What cannot be converted stays what it is,
and `graph_check` refuses it.

Touches private names of TensorFlow, the functions of `gen_random_ops`;
tests/engine/graph/test_random_functions.py fails when they move.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.ops import gen_random_ops

from trainer.engine.graph.random_layers import LayerDraws, SeededDraw, static_shape
from trainer.engine.graph.randomness import BatchPart, converting_part

_draws = LayerDraws(2**31 - 2)  # more than the layers that a model has

_Convert: TypeAlias = Callable[[BatchPart, dict[str, Any]], tf.Tensor | None]
"""Draws what an operation of these arguments would; None: it cannot be converted."""


@functools.cache
def convert_draws() -> None:
    """Have TensorFlow's random functions draw for the part that is traced, from now on."""
    for name, convert in _CONVERSIONS.items():
        setattr(gen_random_ops, name, _converted(getattr(gen_random_ops, name), convert))
    for name in ("normal", "uniform", "truncated_normal"):
        original = getattr(tf.random.Generator, name)
        setattr(tf.random.Generator, name, _without_generator(original, getattr(tf.random, name)))


def _converted(original: Callable[..., Any], convert: _Convert) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def draw(*args: Any, **options: Any) -> Any:
        part = converting_part()
        drawn = part and convert(part, signature.bind(*args, **options).arguments)
        return original(*args, **options) if drawn is None else drawn

    return draw


def _without_generator(
    original: Callable[..., Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def draw(*args: Any, **options: Any) -> Any:
        if converting_part() is None:
            return original(*args, **options)
        _, *rest = signature.bind(*args, **options).arguments.items()
        return function(**dict(rest))

    return draw


def _shape(part: BatchPart, shape: Any) -> list[int] | None:
    """Return the shape of a draw whose slices are known; None: they are not.

    The first dimension is as long as the part, or else nothing may say that another one belongs to
    the examples.
    """
    static = static_shape(shape)
    if not static or static[0] == part.size or 1 in (part.parts, part.size):
        return static
    return None if static[0] % part.size == 0 or part.size in static[1:] else static


def _normal(part: BatchPart, options: Mapping[str, Any]) -> tf.Tensor | None:
    shape = _shape(part, options["shape"])
    return None if shape is None else _draws.random_normal(shape, dtype=options["dtype"])


def _uniform(part: BatchPart, options: Mapping[str, Any]) -> tf.Tensor | None:
    shape = _shape(part, options["shape"])
    return None if shape is None else _draws.random_uniform(shape, dtype=options["dtype"])


def _integers(part: BatchPart, options: Mapping[str, Any]) -> tf.Tensor | None:
    shape = _shape(part, options["shape"])
    low, high = tf.convert_to_tensor(options["minval"]), tf.convert_to_tensor(options["maxval"])
    return None if shape is None else _draws.random_uniform(shape, low, high, low.dtype)


def _truncated_normal(part: BatchPart, options: Mapping[str, Any]) -> tf.Tensor | None:
    """Draw within two standard deviations, by the inverse of the distribution's function.

    Values are rejected otherwise, which shifts those after them.
    """
    shape = _shape(part, options["shape"])
    if shape is None:
        return None
    dtype = tf.as_dtype(options["dtype"])
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    area = _draws.random_uniform(shape, -1.0, 1.0, wide) * math.erf(math.sqrt(2.0))
    return tf.cast(math.sqrt(2.0) * tf.math.erfinv(area), dtype)


def _multinomial(part: BatchPart, options: Mapping[str, Any]) -> tf.Tensor | None:
    """Draw classes, as the largest sums of a logit and Gumbel noise."""
    logits = tf.convert_to_tensor(options["logits"])
    count = tf.get_static_value(options["num_samples"])
    if count is None or not logits.shape.is_fully_defined():
        return None
    rows, classes = logits.shape
    shape = _shape(part, [rows, int(count), classes])
    if shape is None:
        return None
    wide = tf.float64 if logits.dtype == tf.float64 else tf.float32
    uniform = _draws.random_uniform(shape, dtype=wide)
    noise = -tf.math.log(-tf.math.log(tf.maximum(uniform, wide.as_numpy_dtype(1e-30))))
    sums = tf.cast(logits, wide)[:, None] + noise
    return tf.argmax(sums, axis=2, output_type=options.get("output_dtype", tf.int64))


def _shuffle(part: BatchPart, options: Mapping[str, Any]) -> tf.Tensor | None:
    """Shuffle along the first dimension; not the examples, whose others are on other replicas."""
    value = tf.convert_to_tensor(options["value"])
    shape = None if value.shape.rank in (None, 0) else _shape(part, value.shape[:1])
    if shape is None or (part.parts > 1 and shape == [part.size]):
        return None
    return tf.gather(value, tf.argsort(_draws.random_uniform(shape, dtype=tf.int32), stable=True))


def _gamma(part: BatchPart, options: Mapping[str, Any]) -> tf.Tensor | None:
    alpha = tf.convert_to_tensor(options["alpha"])

    def draw(shape: list[int], seed: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_gamma(shape, seed, alpha, dtype=alpha.dtype)

    return _by_example(part, options["shape"], alpha, draw, alpha.dtype)


def _poisson(part: BatchPart, options: Mapping[str, Any]) -> tf.Tensor | None:
    dtype = tf.as_dtype(options.get("dtype", tf.int64))

    def draw(shape: list[int], seed: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_poisson(shape, seed, rate, dtype)

    return _by_example(part, options["shape"], tf.convert_to_tensor(options["rate"]), draw, dtype)


def _by_example(
    part: BatchPart, shape: Any, parameter: tf.Tensor, draw: SeededDraw, dtype: tf.DType
) -> tf.Tensor | None:
    outer = static_shape(shape)
    if outer is None or not parameter.shape.is_fully_defined():
        return None
    if _shape(part, [*outer, *parameter.shape]) is None:
        return None
    return _draws.by_example(outer, parameter, draw, dtype)


_CONVERSIONS: Mapping[str, _Convert] = {
    "random_standard_normal": _normal,
    "random_uniform": _uniform,
    "random_uniform_int": _integers,
    "truncated_normal": _truncated_normal,
    "multinomial": _multinomial,
    "random_shuffle": _shuffle,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
}
