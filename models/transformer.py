"""A decoder-only transformer, which predicts the next token (Radford et al. 2018)."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic
from trainer.models.layers.inputs import require_tokens
from trainer.models.layers.transformer_layers import Sizes, TokenEmbedding, stack


def transformer(  # noqa: PLR0913 - every option is a key of the configuration
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    vocabulary: Annotated[int, Ge(1)] = 256,
    layers: Annotated[int, Ge(1)] = 2,
    width: Annotated[int, Ge(1)] = 128,
    heads: Annotated[int, Ge(1)] = 4,
    hidden: Annotated[int, Ge(1)] = 512,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.1,
    tied: bool = True,
) -> tf.keras.Model:
    """Build a decoder: each token sees itself and those before it; to logits [B, T, num_classes].

    With `tied` the logits use the embedding of tokens (Press and Wolf 2017), at most `vocabulary`.
    """
    require_tokens("transformer", input_shape, "text_windows")
    sizes = Sizes(layers, width, heads, hidden, dropout)
    inputs = tf.keras.Input(input_shape, name="features", dtype="int32")
    embedding = TokenEmbedding(vocabulary, width, input_shape[0], name="embedding")
    x = stack(embedding(inputs), sizes, causal=True)
    if tied:
        outputs = embedding(x, logits=num_classes)
    else:
        outputs = tf.keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return tf.keras.Model(inputs, outputs, name="transformer")
