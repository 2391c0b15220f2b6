"""Random draws within a step: what they return is a slice of what the global batch would draw.

TensorFlow's random functions count in their kernels, which no checkpoint holds, and each replica
counts by itself. While a step is traced they are replaced below their public names, where layers
of Keras, `tf.nn.dropout` and other libraries call them too. Where nothing can be replaced the
operation stays as it is, and `graph_check` refuses it.

Philox is a counter-based generator (Salmon et al. 2011): any slice of a long draw that starts at a
group of four numbers can be drawn alone, with the counter set to that group. So a draw whose first
dimension is the batch is the same on any number of devices, and costs no more than one's own.

One rule decides by the shape. The first dimension is as long as the part of the batch, or a
multiple, as where time steps follow each other: the draw is the part's slice of the global batch's
draw. The examples may be in it otherwise (another dimension, an unknown size): each part draws
different numbers. Any other draw is the same for all parts.

Touches private names, the functions of `gen_random_ops` and the generators of tf_keras' layers;
tests/engine/graph/randomness/test_draws.py fails when they move.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.tensor_util import try_evaluate_constant
from tensorflow.python.ops import gen_random_ops
from tf_keras.src.engine.base_layer import BaseRandomLayer

from trainer.engine.graph.randomness.randomness import BatchPart, current_part, fold_seed
from trainer.errors import ConfigError

_PHILOX = 1
_GROUP = 4  # numbers of at most 32 bits for each value of the counter; of 64 bits there are half

# Recurrent cells keep masks by graph, and graphs cannot be sorted: `submodules` would fail on them.
tf.keras.layers.Layer._TF_MODULE_IGNORED_PROPERTIES |= {
    "_dropout_mask_cache",
    "_recurrent_dropout_mask_cache",
}


@functools.cache
def convert_draws() -> None:
    """Have TensorFlow's random functions draw for the part that is traced, from now on."""
    for name, draw in _CONVERSIONS.items():
        setattr(gen_random_ops, name, _converted(getattr(gen_random_ops, name), draw))
    for name in ("normal", "uniform", "truncated_normal"):
        original, function = getattr(tf.random.Generator, name), getattr(tf.random, name)
        setattr(tf.random.Generator, name, _converted(original, _without_generator(function)))
    BaseRandomLayer._random_generator = property(_legacy_generator, _set_generator)


def _converted(original: Callable[..., Any], draw: Callable[..., tf.Tensor]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def convert(*args: Any, **options: Any) -> Any:
        if current_part() is None:
            return original(*args, **options)
        return draw(**signature.bind(*args, **options).arguments)

    return convert


def _without_generator(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    return lambda self, **options: function(**options)


def _legacy_generator(layer: tf.keras.layers.Layer) -> Any:
    """Return a layer's generator of random numbers: in a step one that calls `tf.random`.

    Not before: a model is built with the same initial weights as the first one of a process.
    """
    generator = layer.__dict__["_random_generator"]
    if current_part() is not None:
        generator._rng_type = generator.RNG_LEGACY_STATEFUL
    return generator


def _set_generator(layer: tf.keras.layers.Layer, generator: Any) -> None:
    layer.__dict__["_random_generator"] = generator


def _normal(shape: Any, dtype: Any, **_: Any) -> tf.Tensor:
    return _draw(functools.partial(tf.raw_ops.StatelessRandomNormalV2, dtype=dtype), shape, dtype)


def _uniform(shape: Any, dtype: Any, **_: Any) -> tf.Tensor:
    return _draw(functools.partial(tf.raw_ops.StatelessRandomUniformV2, dtype=dtype), shape, dtype)


def _integers(shape: Any, minval: Any, maxval: Any, **_: Any) -> tf.Tensor:
    low = tf.convert_to_tensor(minval)
    high = tf.convert_to_tensor(maxval, low.dtype)
    kernel = functools.partial(tf.raw_ops.StatelessRandomUniformIntV2, minval=low, maxval=high)
    return _draw(kernel, shape, low.dtype)


def _truncated_normal(shape: Any, dtype: Any, **_: Any) -> tf.Tensor:
    """Draw within two standard deviations, by the inverse of the distribution's function.

    Values are rejected otherwise, which shifts those after them.
    """
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    area = (2.0 * _uniform(shape, wide) - 1.0) * math.erf(math.sqrt(2.0))
    return tf.cast(math.sqrt(2.0) * tf.math.erfinv(area), dtype)


def _multinomial(
    logits: tf.Tensor, num_samples: Any, output_dtype: Any = tf.int64, **_: Any
) -> tf.Tensor:
    """Draw classes, as the largest sums of a logit and Gumbel noise."""
    rows, classes = tf.unstack(tf.shape(logits))
    uniform = tf.maximum(_uniform([rows, num_samples, classes], tf.float32), 1e-30)
    sums = tf.cast(logits, tf.float32)[:, None] - tf.math.log(-tf.math.log(uniform))
    return tf.argmax(sums, axis=2, output_type=output_dtype)


def _shuffle(value: tf.Tensor, **_: Any) -> tf.Tensor:
    part = current_part()
    if part is not None and part.num_parts > 1 and value.shape[:1] == [part.size]:
        raise ConfigError(
            f"tf.random.shuffle of a batch ({part.size} of its {part.size * part.num_parts} "
            "examples are here) would not exchange examples between replicas or shards; use "
            "strategy=one_device without batch.shards and batch.accumulate"
        )
    keys = _integers(tf.shape(value)[:1], 0, tf.int32.max)
    return tf.gather(value, tf.argsort(keys, stable=True))


def _gamma(shape: Any, alpha: Any, **_: Any) -> tf.Tensor:
    def draw(shape: Any, seed: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_gamma(shape, seed, alpha, dtype=alpha.dtype)

    alpha = tf.convert_to_tensor(alpha)
    return _draw_by_example(draw, shape, alpha, alpha.dtype)


def _poisson(shape: Any, rate: Any, dtype: Any = tf.int64, **_: Any) -> tf.Tensor:
    def draw(shape: Any, seed: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_poisson(shape, seed, rate, dtype)

    return _draw_by_example(draw, shape, tf.convert_to_tensor(rate), dtype)


_CONVERSIONS: Mapping[str, Callable[..., tf.Tensor]] = {
    "random_standard_normal": _normal,
    "random_uniform": _uniform,
    "random_uniform_int": _integers,
    "truncated_normal": _truncated_normal,
    "multinomial": _multinomial,
    "random_shuffle": _shuffle,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
}


def _draw(kernel: Callable[..., tf.Tensor], shape: Any, dtype: Any) -> tf.Tensor:
    """Draw the part's slice, or by the rule above for this shape, with a kernel of Philox."""
    part, static = current_part(), static_shape(shape)
    assert part is not None
    seed, stream = part.seed_here(), part.count() << 32
    is_slice = _is_slice(static, part)
    if not is_slice and _has_own_numbers(static, part):
        seed = fold_seed(seed, part.number)
    key = tf.bitcast(
        tf.random.stateless_uniform([1], seed, minval=None, maxval=None, dtype=tf.int64), tf.uint64
    )
    kernel = functools.partial(kernel, key=key, alg=_PHILOX)
    if not static or not is_slice:
        return kernel(shape=shape, counter=_counter(0, stream))
    group = _GROUP if tf.as_dtype(dtype).size < 8 else _GROUP // 2
    size = math.prod(static)
    start = part.number * size
    is_aligned = size % group == 0 or (isinstance(start, int) and start % group == 0)
    # From the group that the slice begins in, at most three numbers before it. Flat, because
    # XLA orders the normal draws of a matrix otherwise.
    extra = 0 if is_aligned else group - 1
    numbers = kernel(shape=[size + extra], counter=_counter(start // group, stream))
    if extra:
        numbers = tf.slice(numbers, [start % group], [size])
    return tf.reshape(numbers, static)


def _counter(group: int | tf.Tensor, stream: int) -> tf.Tensor:
    """Return Philox's counter, [2] uint64: the group of numbers, and whose they are."""
    return tf.cast(tf.stack([tf.cast(group, tf.int64), stream]), tf.uint64)


def _draw_by_example(
    draw: Callable[[Any, tf.Tensor, tf.Tensor], tf.Tensor],
    shape: Any,
    parameter: tf.Tensor,
    dtype: Any,
) -> tf.Tensor:
    """Draw from a distribution of which no slice can be drawn, each example with its own seed.

    Args:
        draw: draws from a shape, which ends with that of the parameter, a seed, and the parameter.
        shape: of the draws from each value of the parameter.
    """
    shape = tf.concat([shape, tf.shape(parameter)], axis=0)
    part, static = current_part(), static_shape(shape)
    assert part is not None
    seed = fold_seed(part.seed_here(), part.count())
    is_slice = static is not None and static[:1] == [part.size]
    if not is_slice and (_is_slice(static, part) or _has_own_numbers(static, part)):
        seed = fold_seed(seed, part.number)
    if not static or not is_slice:
        return draw(shape, seed, parameter)
    is_shared = len(static) > parameter.shape.rank
    first = tf.cast(part.number, tf.int64) * part.size
    examples = first + tf.range(part.size, dtype=tf.int64)

    def one(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return draw(static[1:], fold_seed(seed, row[0]), parameter if is_shared else row[1])

    rows = (examples, examples if is_shared else parameter)
    return tf.map_fn(one, rows, fn_output_signature=dtype)


def _is_slice(static: list[int] | None, part: BatchPart) -> bool:
    """Return whether the first dimension of a draw is that of the examples."""
    if not static or part.size == 0:
        return False
    return static[0] == part.size or (part.size > 1 and static[0] > 0 and not static[0] % part.size)


def _has_own_numbers(static: list[int] | None, part: BatchPart) -> bool:
    """Return whether a draw may belong to the examples otherwise than by its first dimension."""
    if static is None or part.size == 0:
        return True
    return part.num_parts > 1 and part.size > 1 and part.size in static[1:]


def static_shape(shape: Any) -> list[int] | None:
    """Return a static shape, or None."""
    if tf.is_tensor(shape) or any(tf.is_tensor(size) for size in shape):
        vector = tf.convert_to_tensor(shape)
        value = tf.get_static_value(vector)
        if value is None:  # Keras puts shapes together from pieces of another tensor's
            value = try_evaluate_constant(vector)
        return None if value is None else [int(size) for size in value]
    return [int(size) for size in shape]
