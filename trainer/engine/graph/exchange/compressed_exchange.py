"""Gradients that travel in 16 bits."""

from __future__ import annotations

import tensorflow as tf

from trainer.engine.graph.exchange.collectives import flat_sum, packed
from trainer.engine.graph.placement.step_devices import on_own_device

_BELOW_OVERFLOW = 2.0**14
"""float16 ends at 2**16; a gradient is scaled to at most twice this, and its sum with it."""

_LEAST_BOUND = 2.0**-100
_EXPONENT = 0x7F800000  # the bits of a float32 that alone make a power of two


class CompressedExchange:
    """Rounds gradients, sums them over the replicas in that type, and returns float32.

    float16 has few exponents, so a gradient is scaled by a power of two before. The scale follows
    from the sum of the replicas' largest values, which no part of the gradient's sum exceeds: it
    travels with the tensors that are not rounded, so nothing is kept from step to step, and a
    gradient that is not finite anywhere is NaN everywhere, for the divergence monitor to see.

    Args:
        dtype: bfloat16 or float16.
    """

    def __init__(self, dtype: tf.DType) -> None:
        self._dtype = dtype

    def __call__(
        self,
        replica: tf.distribute.ReplicaContext,
        gradients: list[tf.Tensor],
        others: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sum float32 tensors over the replicas, only the gradients rounded; in replica context."""
        if self._dtype != tf.float16 or not gradients:
            return packed(gradients, lambda x: self._sum(replica, x)), flat_sum(replica, others)
        largest = [
            on_own_device(lambda x: tf.reduce_max(tf.abs(x)), gradient) for gradient in gradients
        ]
        *exact, bound = flat_sum(replica, [*others, tf.reduce_max(tf.stack(largest))])
        # The power of two of the bound; infinite if the bound is not finite.
        power = tf.bitcast(
            tf.bitwise.bitwise_and(tf.bitcast(bound, tf.int32), _EXPONENT), tf.float32
        )
        scale = _BELOW_OVERFLOW / tf.maximum(power, _LEAST_BOUND)
        return packed(gradients, lambda x: self._sum(replica, x * scale) / scale), exact

    def _sum(self, replica: tf.distribute.ReplicaContext, flat: tf.Tensor) -> tf.Tensor:
        return tf.cast(
            replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(flat, self._dtype)), tf.float32
        )
