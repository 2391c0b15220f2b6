"""Layers and blocks of transformers (Vaswani et al. 2017), with normalization before each part.

Attention is tf_keras' `MultiHeadAttention`: it draws dropout and computes under every strategy as
the other shipped models do. Keras 3's layer makes the same matrix of scores on TensorFlow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

PADDING = 0  # as in `dataset=text`


class Sizes(NamedTuple):
    """The sizes of a transformer.

    Attributes:
        layers: blocks of attention and a feed-forward network.
        width: numbers of a token between the blocks.
        heads: heads of an attention; they share `width`.
        hidden: units in the middle of a feed-forward network.
        dropout: fraction of activations dropped, also of an attention's weights.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    dropout: float


def stack(
    x: tf.Tensor, sizes: Sizes, mask: tf.Tensor | None = None, *, causal: bool = False
) -> tf.Tensor:
    """Return what all blocks make of vectors, [B, T, width], normalized (Xiong et al. 2020).

    Args:
        mask: which tokens are seen, [B, T] bool; None: all.
        causal: whether a token is seen by itself and later ones alone.
    """
    if sizes.width % sizes.heads:
        raise ValueError(
            f"heads ({sizes.heads}) must divide width ({sizes.width}); change one of them"
        )
    layers = tf.keras.layers
    x = layers.Dropout(sizes.dropout, name="dropout")(x)
    for i in range(sizes.layers):
        name = f"block{i}"
        y = _attention(_normalized(x, f"{name}_norm1"), sizes, mask, causal, f"{name}_attention")
        y = layers.Dropout(sizes.dropout, name=f"{name}_dropout1")(y)
        x = layers.Add(name=f"{name}_add1")([x, y])
        y = layers.Dense(sizes.hidden, "gelu", name=f"{name}_dense1")(
            _normalized(x, f"{name}_norm2")
        )
        y = layers.Dense(sizes.width, name=f"{name}_dense2")(y)
        y = layers.Dropout(sizes.dropout, name=f"{name}_dropout2")(y)
        x = layers.Add(name=f"{name}_add2")([x, y])
    return _normalized(x, "norm")


def _attention(
    x: tf.Tensor, sizes: Sizes, mask: tf.Tensor | None, causal: bool, name: str
) -> tf.Tensor:
    attention = tf.keras.layers.MultiHeadAttention(
        sizes.heads, sizes.width // sizes.heads, dropout=sizes.dropout, name=name
    )
    seen = None if mask is None else mask[:, None, :]
    return attention(x, x, attention_mask=seen, use_causal_mask=causal)


def _normalized(x: tf.Tensor, name: str) -> tf.Tensor:
    return tf.keras.layers.LayerNormalization(epsilon=1e-5, name=name)(x)


@tf.keras.utils.register_keras_serializable("steadfast")
class TokenEmbedding(tf.keras.layers.Layer):
    """Learned vectors of tokens and positions; also makes the logits of tokens from the former."""

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
class Positions(tf.keras.layers.Layer):
    """Adds a learned vector of its position to each token."""

    def build(self, input_shape: Any) -> None:
        """Create the vectors, [tokens, width]."""
        self.positions = self.add_weight("positions", input_shape[1:], initializer=_small())
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return [B, tokens, width] of the same shape."""
        return inputs + tf.convert_to_tensor(self.positions)


@tf.keras.utils.register_keras_serializable("steadfast")
class PaddingMask(tf.keras.layers.Layer):
    """Which tokens of a text count; all of an empty text."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return [B, length] bool from tokens, [B, length] int32."""
        counts = inputs != PADDING
        return counts | ~tf.reduce_any(counts, axis=1, keepdims=True)


def _small() -> tf.keras.initializers.Initializer:
    return tf.keras.initializers.RandomNormal(stddev=0.02)  # one object would draw the same twice
