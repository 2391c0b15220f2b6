"""Stateless randomness: a function of (seed, step, replica, layer) or (seed, epoch, example).

Dropout's default generator in tf_keras keeps a counter inside its kernel that no checkpoint holds,
so a resumed run would diverge at its first step. Here every random layer asks for its seed while
the step is traced, and gets a fold of the step's seed: there is nothing to save, and masks differ
between steps, replicas and layers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from trainer.errors import ConfigError

# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


@contextmanager
def step_seed(seed: Callable[[], tf.Tensor]) -> Iterator[None]:
    """Set the seed of what is traced inside; random layers fold their number into it.

    Args:
        seed: returns the seed, [2] int32. Called by each random layer, in the graph that the layer
            is traced in, and never by a model without randomness.
    """
    outer = getattr(_current, "seed", None)
    _current.seed = seed
    try:
        yield
    finally:
        _current.seed = outer


def fold_seed(seed: int, *parts: tf.Tensor) -> tf.Tensor:
    """Return a seed, [2] int32, that depends on all of `parts`, integer scalars."""
    folded = tf.constant([seed & 0xFFFFFFFF, seed >> 32], tf.int64)
    for part in parts:
        folded = tf.random.experimental.stateless_fold_in(folded, tf.cast(part, tf.int64))
    return folded


@contextmanager
def folded_step_seed(part: int | tf.Tensor) -> Iterator[None]:
    """Fold `part`, the number of a micro-batch, into the current step's seed."""
    outer = _current.seed
    with step_seed(
        lambda: tf.random.experimental.stateless_fold_in(outer(), tf.cast(part, tf.int64))
    ):
        yield


def _fold_current(part: int) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(_current.seed(), tf.cast(part, tf.int64))


def make_stateless(model: tf.keras.Model, offset: int = 0) -> int:
    """Have every random layer of a model take its randomness from the current step's seed.

    Touches private names of tf_keras 2.21 (`_random_generator`, `_rng_type`,
    `make_seed_for_stateless_op`);
    tests/engine/graph/test_randomness.py fails loudly when they move.

    Args:
        model: the model, built or not; layers inside layers are found too.
        offset: number of the first random layer, so that two models of one task differ.

    Returns:
        The number of random layers.

    Raises:
        ConfigError: a layer has a random generator of another kind than tf_keras' layers.
    """
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
        generator._rng_type = "stateless"
        generator.make_seed_for_stateless_op = _seed_of(number)
    return len(layers)


def _seed_of(number: int) -> Callable[[], tf.Tensor]:
    def seed() -> tf.Tensor:
        # Outside a step (a summary, an export) layers are called in inference mode: any seed will
        # do.
        if getattr(_current, "seed", None) is None:
            return tf.constant([0, number], tf.int32)
        return _fold_current(number)

    return seed


def uniform(seed: int, epochs: tf.Tensor, indices: tf.Tensor, num_draws: int) -> tf.Tensor:
    """Draw numbers that depend only on (seed, epoch, example), not on the batch or the replica.

    A counter through the finalizer of SplitMix64 (Steele, Lea and Flood 2014), vectorized over
    examples.

    Args:
        seed: the experiment's seed.
        epochs: [B] int64.
        indices: [B] int64, example indices.
        num_draws: numbers for each example.

    Returns:
        [B, num_draws] float32 in [0, 1).
    """
    key = _mix(
        _mix(_mix(tf.fill(tf.shape(indices), tf.constant(seed, tf.uint64))) + _u64(epochs))
        + _u64(indices)
    )
    counter = _u64(tf.range(1, num_draws + 1, dtype=tf.int64))
    draws = _mix(key[:, None] + _GOLDEN * counter[None, :])
    # The top 24 bits fill a float32's significand exactly.
    return tf.cast(tf.bitwise.right_shift(draws, tf.constant(40, tf.uint64)), tf.float32) * (
        2.0**-24
    )


_GOLDEN = 0x9E3779B97F4A7C15


def _u64(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.uint64)


def _mix(x: tf.Tensor) -> tf.Tensor:
    def xor_shift(x: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(bits, tf.uint64)))

    x = xor_shift(x + tf.constant(_GOLDEN, tf.uint64), 30) * tf.constant(
        0xBF58476D1CE4E5B9, tf.uint64
    )
    x = xor_shift(x, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return xor_shift(x, 31)
