"""Random layers: what they draw is their slice of what the global batch would draw.

Philox is a counter-based generator (Salmon et al. 2011): any slice of a long draw that begins at a
group of four numbers can be drawn alone, with the counter set to that group. So a draw whose first
dimension is the batch is the same on any number of devices, and costs no more than one's own.

One rule decides. The first dimension of a draw is as long as the part of the batch: the draw is the
part's slice of the global batch's draw. Any other draw is the same for all parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework.tensor_util import try_evaluate_constant

from trainer.engine.graph.randomness.randomness import current_part, fold_seed
from trainer.errors import ConfigError

_PHILOX = 1
_GROUP = 4  # numbers of at most 32 bits for each value of the counter; of 64 bits there are half

_Kernel: TypeAlias = Callable[[Any, tf.Tensor, tf.Tensor], tf.Tensor]

SeededDraw: TypeAlias = Callable[[list[int], tf.Tensor, tf.Tensor], tf.Tensor]
"""Draws from a shape, which ends with that of the parameter, a seed, and the parameter."""

# Recurrent cells keep masks by graph, and graphs cannot be sorted: `submodules` would fail on them.
tf.keras.layers.Layer._TF_MODULE_IGNORED_PROPERTIES |= {
    "_dropout_mask_cache",
    "_recurrent_dropout_mask_cache",
}


def layers_of(owner: object) -> tf.Module:
    """Return the layers that any object has as attributes, such as a dataset, in one module."""
    module = tf.Module()
    attributes = tf.nest.flatten(getattr(owner, "__dict__", {}))
    module.layers = [value for value in attributes if isinstance(value, tf.Module)]
    return module


def make_stateless(model: tf.Module, offset: int = 0) -> int:
    """Have every random layer of a model draw for the part of the batch that is traced.

    Touches private names of tf_keras 2.21 (`_random_generator`, `_rng_type`, and the generator's
    methods); tests/engine/graph/randomness/test_random_layers.py fails loudly when they move.

    Args:
        model: the model, built or not; layers inside layers are found too. One of Keras 3 does it
            itself.
        offset: number of the first random layer, so that two models of one task differ.

    Returns:
        The number of random layers.

    Raises:
        ConfigError: a layer has a random generator of another kind than tf_keras' layers.
    """
    if hasattr(model, "number_draws"):
        return model.number_draws(offset)
    layers = [
        layer for layer in model.submodules if getattr(layer, "_random_generator", None) is not None
    ]
    for number, layer in enumerate(layers, start=offset):
        generator = layer._random_generator
        if not (
            hasattr(generator, "_rng_type") and hasattr(generator, "make_seed_for_stateless_op")
        ):
            raise ConfigError(
                f"layer {layer.name} ({type(layer).__name__}) keeps random state that no "
                "checkpoint holds; use a stateless layer"
            )
        draws = LayerDraws(number)
        generator._rng_type = "stateless"
        generator.random_uniform = draws.random_uniform
        generator.random_normal = draws.random_normal
        generator.dropout = draws.dropout
        # A layer that takes a seed draws by itself, such as truncated normals: of these no slice
        # can be drawn, because values that are rejected shift those after them.
        generator.make_seed_for_stateless_op = draws.seed
        if isinstance(layer, tf.keras.layers.RandomFlip):
            layer.call = _flip(layer, draws)
    return len(layers)


_TASK = 2**31 - 1
"""Number of the task among the random layers: more than a model has."""


def task_draws() -> LayerDraws:
    """Return the draws of a task: of any shape whose first dimension is the example.

    A scalar is the same for all parts.
    """
    return LayerDraws(_TASK, per_example=True)


class LayerDraws:
    """The draws of one layer, with the signatures of tf_keras' RandomGenerator.

    Args:
        number: the layer's number among all random layers.
        per_example: whether the first dimension of a draw is always the example, however many
            examples the part has.
    """

    def __init__(self, number: int, *, per_example: bool = False) -> None:
        self._number = number
        self._per_example = per_example

    def seed(self) -> tf.Tensor:
        """Return a seed, [2] int64, that no other draw and no other part of the batch has."""
        part = current_part()
        return fold_seed(part.seed_here(), self._number, part.count(self._number), part.number)

    def random_uniform(
        self,
        shape: Any,
        minval: Any = 0.0,
        maxval: Any = None,
        dtype: Any = None,
        nonce: int | None = None,
    ) -> tf.Tensor:
        """Draw from [minval, maxval), of floats or integers."""
        dtype = tf.as_dtype(dtype or tf.keras.backend.floatx())
        if dtype.is_integer:
            low = tf.cast(minval, dtype)
            high = dtype.max if maxval is None else maxval
            high = tf.cast(high, dtype) if tf.is_tensor(high) else tf.constant(high, dtype)

            def integers(shape: Any, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
                return tf.raw_ops.StatelessRandomUniformIntV2(
                    shape=shape, key=key, counter=counter, alg=_PHILOX, minval=low, maxval=high
                )

            return self._draw(integers, shape, dtype, nonce)
        draws = self._draw(_kernel(tf.raw_ops.StatelessRandomUniformV2, dtype), shape, dtype, nonce)
        low = tf.cast(minval, dtype)
        return draws * (tf.cast(1.0 if maxval is None else maxval, dtype) - low) + low

    def random_normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = None,
        nonce: int | None = None,
    ) -> tf.Tensor:
        """Draw from a normal distribution."""
        dtype = tf.as_dtype(dtype or tf.keras.backend.floatx())
        draws = self._draw(_kernel(tf.raw_ops.StatelessRandomNormalV2, dtype), shape, dtype, nonce)
        return draws * tf.cast(stddev, dtype) + tf.cast(mean, dtype)

    def dropout(self, inputs: tf.Tensor, rate: Any, noise_shape: Any = None) -> tf.Tensor:
        """Set a share of the inputs to zero, and scale the others up."""

        def sample(shape: Any, dtype: tf.DType) -> tf.Tensor:
            return self._draw(_kernel(tf.raw_ops.StatelessRandomUniformV2, dtype), shape, dtype)

        return tf.nn.experimental.general_dropout(
            inputs, rate=rate, uniform_sampler=sample, noise_shape=noise_shape
        )

    def by_example(
        self, shape: list[int], parameter: tf.Tensor, draw: SeededDraw, dtype: tf.DType
    ) -> tf.Tensor:
        """Draw from a distribution of which no slice can be drawn, each example with its own seed.

        Args:
            shape: static, ends with that of the parameter.
        """
        part = current_part()
        seed = fold_seed(part.seed_here(), self._number, part.count(self._number))
        if not shape or shape[0] != part.size:
            return draw(shape, seed, parameter)
        is_shared = len(shape) > parameter.shape.rank
        first = tf.cast(part.number, tf.int64) * part.size
        examples = first + tf.range(part.size, dtype=tf.int64)

        def one(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            return draw(shape[1:], fold_seed(seed, row[0]), parameter if is_shared else row[1])

        rows = (examples, examples if is_shared else parameter)
        return tf.map_fn(one, rows, fn_output_signature=dtype)

    def _draw(
        self, kernel: _Kernel, shape: Any, dtype: tf.DType, nonce: int | None = None
    ) -> tf.Tensor:
        part = current_part()
        call = part.count(self._number)
        seed = part.seed_here() if nonce is None else fold_seed(part.seed_here(), nonce)
        static = static_shape(shape)
        if static is None and self._per_example:
            raise ConfigError(
                "task: a draw must have a static shape; write e.g. batch['weight'].shape[0], not "
                "tf.shape(...)[0]"
            )
        if static is None:
            # Not known to be the batch's, nor not to be: at least no two parts draw the same.
            seed = fold_seed(seed, part.number)
        key = tf.bitcast(
            tf.random.stateless_uniform([1], seed, minval=None, maxval=None, dtype=tf.int64),
            tf.uint64,
        )
        stream = self._number << 32 | call
        is_whole = not static or not (self._per_example or static[0] == part.size)
        if static is None or is_whole:
            return kernel(shape, key, _counter(0, stream))
        group = _GROUP if dtype.size < 8 else _GROUP // 2
        size = math.prod(static)
        start = part.number * size
        is_aligned = size % group == 0 or (isinstance(start, int) and start % group == 0)
        # From the group that the slice begins in, at most three numbers before it. Flat, because
        # XLA orders the normal draws of a matrix otherwise.
        extra = 0 if is_aligned else group - 1
        numbers = kernel([size + extra], key, _counter(start // group, stream))
        if extra:
            numbers = tf.slice(numbers, [start % group], [size])
        return tf.reshape(numbers, static)


def _kernel(op: Any, dtype: tf.DType) -> _Kernel:
    return lambda shape, key, counter: op(
        shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=dtype
    )


def _counter(group: int | tf.Tensor, stream: int) -> tf.Tensor:
    """Return Philox's counter, [2] uint64: the group of numbers, and whose they are."""
    return tf.cast(tf.stack([tf.cast(group, tf.int64), stream]), tf.uint64)


def static_shape(shape: Any) -> list[int] | None:
    """Return a shape that is known when it is traced; None: it is not."""
    if tf.is_tensor(shape) or any(tf.is_tensor(size) for size in shape):
        vector = tf.convert_to_tensor(shape)
        value = tf.get_static_value(vector)
        if value is None:  # Keras puts shapes together from pieces of another tensor's
            value = try_evaluate_constant(vector)
        return None if value is None else [int(size) for size in value]
    return [int(size) for size in shape]


def _flip(layer: tf.keras.layers.RandomFlip, draws: LayerDraws) -> Callable[..., tf.Tensor]:
    """Return a `call` of RandomFlip that draws here: its own draws with a seed, by TensorFlow."""

    def call(inputs: tf.Tensor, training: Any = True) -> tf.Tensor:
        images = tf.cast(inputs, layer.compute_dtype)
        if not training:
            return images
        count = [] if images.shape.rank == 3 else [images.shape[0], 1, 1, 1]
        for is_flipped, axis in ((layer.horizontal, -2), (layer.vertical, -3)):
            if is_flipped:
                flips = draws.random_uniform(count, dtype=tf.float32) >= 0.5
                images = tf.where(flips, tf.reverse(images, [images.shape.rank + axis]), images)
        return images

    return call
