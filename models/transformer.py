"""Transformers of tokens (Vaswani et al. 2017), normalised before each part (Xiong et al. 2020).

Attention is tf_keras' `MultiHeadAttention`: it draws dropout and computes under every strategy as
the other shipped models do. Keras 3's layer makes the same matrix of scores on TensorFlow.
"""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.models.token_layers import PaddingMask, TokenEmbedding


def transformer(  # noqa: PLR0913 - every option is a key of the configuration
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    causal: bool = True,
    vocabulary: Annotated[int, ">= 1"] = 257,
    layers: Annotated[int, ">= 1"] = 2,
    width: Annotated[int, ">= 1"] = 128,
    heads: Annotated[int, ">= 1"] = 4,
    hidden: Annotated[int, ">= 1"] = 512,
    dropout: Annotated[float, ">= 0, < 1"] = 0.1,
    tied: bool = True,
) -> tf.keras.Model:
    """Build a decoder, which predicts the token after each, or an encoder, which judges a text.

    Args:
        input_shape: (tokens,), the length of a text.
        num_classes: how many logits.
        causal: whether a token sees only itself and those before it; then each token has logits.
            If not, the text has, from the mean over its tokens that are no padding.
        vocabulary: how many different tokens there are, an encoder's padding included.
        layers: blocks of attention and a feed-forward network.
        width: numbers of a token between the blocks.
        heads: heads of an attention; they share `width`.
        hidden: units in the middle of a feed-forward network.
        dropout: share of activations dropped, also of an attention's weights.
        tied: whether a decoder's logits use the embedding of tokens (Press and Wolf 2017).

    Returns:
        A model from features [B, tokens] int32 to logits float32: [B, tokens, num_classes] of a
        decoder, [B, num_classes] of an encoder.

    Raises:
        ValueError: the features are not tokens, or the heads do not divide the width.
    """
    _check(input_shape, width, heads, "text_windows" if causal else "text")
    dense = tf.keras.layers.Dense(num_classes, dtype="float32", name="logits")
    inputs = tf.keras.Input(input_shape, name="features", dtype="int32")
    embedding = TokenEmbedding(vocabulary, width, input_shape[0], name="embedding")
    x = tf.keras.layers.Dropout(dropout, name="dropout")(embedding(inputs))
    mask = None if causal else PaddingMask(name="mask")(inputs)
    for i in range(layers):
        x = _block(x, mask, f"block{i}", heads=heads, hidden=hidden, dropout=dropout)
    x = _normalised(x, "norm")
    if mask is not None:
        x = tf.keras.layers.GlobalAveragePooling1D(name="mean")(x, mask=mask)
    outputs = embedding(x, logits=num_classes) if causal and tied else dense(x)
    return tf.keras.Model(inputs, outputs, name="transformer")


def _check(input_shape: tuple[int, ...], width: int, heads: int, dataset: str) -> None:
    if len(input_shape) != 1:
        raise ValueError(
            f"transformer takes tokens [length], the dataset gives {list(input_shape)}; "
            f"use dataset={dataset}"
        )
    if width % heads:
        raise ValueError(f"heads ({heads}) must divide width ({width})")


def _block(
    x: tf.Tensor, mask: tf.Tensor | None, name: str, *, heads: int, hidden: int, dropout: float
) -> tf.Tensor:
    layers = tf.keras.layers
    width = x.shape[-1]
    normal = _normalised(x, f"{name}_norm1")
    attention = layers.MultiHeadAttention(
        heads, width // heads, dropout=dropout, name=f"{name}_attention"
    )
    seen = None if mask is None else mask[:, None, :]
    y = attention(normal, normal, attention_mask=seen, use_causal_mask=mask is None)
    x = layers.Add(name=f"{name}_add1")([x, layers.Dropout(dropout, name=f"{name}_dropout1")(y)])
    y = layers.Dense(hidden, "gelu", name=f"{name}_dense1")(_normalised(x, f"{name}_norm2"))
    y = layers.Dense(width, name=f"{name}_dense2")(y)
    return layers.Add(name=f"{name}_add2")([x, layers.Dropout(dropout, name=f"{name}_dropout2")(y)])


def _normalised(x: tf.Tensor, name: str) -> tf.Tensor:
    return tf.keras.layers.LayerNormalization(epsilon=1e-5, name=name)(x)
