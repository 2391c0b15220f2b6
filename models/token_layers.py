"""Layers of models of tokens."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

PADDING = 0  # as in `dataset=text`


@tf.keras.utils.register_keras_serializable("steadfast")
class TokenEmbedding(tf.keras.layers.Layer):
    """Learned vectors of tokens and of positions; and the logits of tokens from the same vectors.

    Args:
        vocabulary: how many different tokens there are.
        width: numbers of a vector.
        length: how many positions there are.
    """

    def __init__(self, vocabulary: int, width: int, length: int, **options: Any) -> None:
        super().__init__(**options)
        self._config = {"vocabulary": vocabulary, "width": width, "length": length}
        # In float32 always: logits are sums of many products.
        self.tokens = self.add_weight(
            "tokens", [vocabulary, width], tf.float32, _small(), experimental_autocast=False
        )
        self.positions = self.add_weight(
            "positions", [length, width], tf.float32, _small(), experimental_autocast=False
        )

    def call(self, inputs: tf.Tensor, logits: int = 0) -> tf.Tensor:
        """Return vectors [B, length, width] of tokens [B, length] int32.

        With `logits`, return these of the first tokens, [B, length, logits] float32, from vectors.
        """
        if logits:
            vectors = tf.cast(inputs, tf.float32)
            return tf.einsum("btw,vw->btv", vectors, self.tokens[:logits])
        return tf.cast(tf.gather(self.tokens, inputs) + self.positions, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**super().get_config(), **self._config}


@tf.keras.utils.register_keras_serializable("steadfast")
class PaddingMask(tf.keras.layers.Layer):
    """Which tokens of a text count; all of a text that has none."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return [B, length] bool from tokens, [B, length] int32."""
        counts = inputs != PADDING
        return counts | ~tf.reduce_any(counts, axis=1, keepdims=True)


def _small() -> tf.keras.initializers.Initializer:
    return tf.keras.initializers.RandomNormal(stddev=0.02)  # one object would draw the same twice
