"""Layers whose kernels have the spectral norm 1 (Miyato et al. 2018, "Spectral Normalization").

A kernel W, as a matrix of [inputs, outputs], is divided by an estimate of its largest singular
value: the length of W u, where the unit vector u is the power iteration's estimate of the right
singular vector. u moves by one iteration before each update of the model and is a constant to the
gradient, so a forward pass changes nothing: it may be repeated or cut into micro-batches.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class SpectralNormalization:
    """Adds the vector and its power iteration to a layer with a `kernel`, as the first base class.

    Attributes:
        kernel: the weights, [..., outputs].
        singular_vector: the estimate of the right singular vector, [outputs] float32, saved in
            every checkpoint; of any length.
    """

    kernel: Any
    singular_vector: tf.Variable

    def build(self, input_shape: Any) -> None:
        """Create the weights and the vector."""
        super().build(input_shape)  # type: ignore[misc]  # of the layer
        self.singular_vector = self.add_weight(  # type: ignore[attr-defined]
            "singular_vector",
            [int(self.kernel.shape[-1])],
            tf.float32,
            tf.keras.initializers.RandomNormal(stddev=1.0),
            trainable=False,
            experimental_autocast=False,
            # All replicas compute the same: the first one's is everybody's, to the bit.
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def before_update(self) -> None:
        """Make one power iteration; called once before each update of the model."""
        matrix = _matrix(tf.convert_to_tensor(self.kernel))
        image = tf.linalg.matvec(matrix, tf.math.l2_normalize(self.singular_vector))
        moved = tf.linalg.matvec(matrix, tf.math.l2_normalize(image), transpose_a=True)
        self.singular_vector.assign(tf.math.l2_normalize(moved))

    def normalized(self, kernel: tf.Tensor) -> tf.Tensor:
        """Return a kernel divided by the estimate of its largest singular value."""
        vector = tf.stop_gradient(tf.math.l2_normalize(tf.convert_to_tensor(self.singular_vector)))
        norm = tf.norm(tf.linalg.matvec(_matrix(kernel), vector))
        return kernel / tf.cast(norm, kernel.dtype)


class SpectralConv2D(SpectralNormalization, tf.keras.layers.Conv2D):
    """A convolution with a normalized kernel."""

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Convolve with the normalized kernel."""
        return super().convolution_op(inputs, self.normalized(tf.convert_to_tensor(kernel)))


class SpectralDense(SpectralNormalization, tf.keras.layers.Dense):
    """A fully connected layer with a normalized kernel, for inputs [B, features]."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return [B, units]."""
        outputs = tf.matmul(inputs, self.normalized(tf.convert_to_tensor(self.kernel)))
        if self.use_bias:
            outputs = tf.nn.bias_add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)


def _matrix(kernel: tf.Tensor) -> tf.Tensor:
    """Return a kernel as a matrix, [inputs, outputs] float32."""
    return tf.cast(tf.reshape(kernel, [-1, kernel.shape[-1]]), tf.float32)
