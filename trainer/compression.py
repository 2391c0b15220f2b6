"""Gradients in 16 bits between processes: half the bytes, and TensorFlow's ring adds them up faster too."""

from __future__ import annotations

import tensorflow as tf

from trainer.collectives import flat_sum, packed

_TARGET = 2.0**10
"""Where the largest value of a float16 gradient is put. 64 times below overflow, so that a gradient may grow so much from one
step to the next; values down to 2**-24 of the largest keep all 11 bits."""

_LEAST = 2.0**-40
"""The smallest peak that is reckoned with. A sum of zero may be one that was too small to be seen, so the peak falls by 64."""


class Compressed:
    """Rounds gradients, sums them over the replicas in that type, and gives them back in float32.

    float16 has few exponents, so the gradient is scaled by a power of two before. The scale follows from the largest value of
    the previous step's sum, which all replicas know: it takes no communication, and is in the checkpoint.

    Args:
        dtype: bfloat16 or float16.
        peak: about the largest absolute value of the last sum, float32 scalar; 0 before the first.
    """

    def __init__(self, dtype: tf.DType, peak: tf.Variable) -> None:
        self._dtype, self._peak = dtype, peak

    def __call__(
        self, replica: tf.distribute.ReplicaContext, gradients: list[tf.Tensor], others: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sums float32 tensors over the replicas, the gradients rounded, the others not; in replica context."""
        exact = flat_sum(replica, others)
        through = self._sum_scaled if self._dtype == tf.float16 else self._sum
        return packed(gradients, lambda flat: through(replica, flat)), exact

    def _sum(self, replica: tf.distribute.ReplicaContext, flat: tf.Tensor) -> tf.Tensor:
        return tf.cast(replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(flat, self._dtype)), tf.float32)

    def _sum_scaled(self, replica: tf.distribute.ReplicaContext, flat: tf.Tensor) -> tf.Tensor:
        peak = tf.where(self._peak > 0.0, self._peak.read_value(), _TARGET)
        exponent = tf.math.floor(tf.math.log(_TARGET / peak) / tf.math.log(2.0))
        scale = tf.pow(2.0, tf.maximum(exponent, -100.0))
        # A gradient that grew beyond the headroom is cut off, not made infinite: the sum must still fit.
        limit = self._dtype.max / replica.num_replicas_in_sync
        total = self._sum(replica, tf.clip_by_value(flat * scale, -limit, limit)) / scale
        found = tf.reduce_max(tf.abs(total))
        self._peak.assign(tf.maximum(tf.where(found > 0.0, found, peak / 64.0), _LEAST))
        return total
