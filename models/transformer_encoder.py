"""A transformer encoder, which classifies texts (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic
from trainer.models.layers.inputs import require_tokens
from trainer.models.layers.transformer_layers import PaddingMask, Sizes, TokenEmbedding, stack


def transformer_encoder(  # noqa: PLR0913 - every option is a key of the configuration
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    vocabulary: Annotated[int, Ge(1)] = 257,
    layers: Annotated[int, Ge(1)] = 2,
    width: Annotated[int, Ge(1)] = 128,
    heads: Annotated[int, Ge(1)] = 4,
    hidden: Annotated[int, Ge(1)] = 512,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.1,
) -> tf.keras.Model:
    """Build an encoder: each token sees all but the padding; their mean is classified, [B, C]."""
    require_tokens("transformer_encoder", input_shape, "text")
    sizes = Sizes(layers, width, heads, hidden, dropout)
    inputs = tf.keras.Input(input_shape, name="features", dtype="int32")
    mask = PaddingMask(name="mask")(inputs)
    x = stack(
        TokenEmbedding(vocabulary, width, input_shape[0], name="embedding")(inputs), sizes, mask
    )
    x = tf.keras.layers.GlobalAveragePooling1D(name="mean")(x, mask=mask)
    outputs = tf.keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return tf.keras.Model(inputs, outputs, name="transformer_encoder")
