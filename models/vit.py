"""A vision transformer (Dosovitskiy et al. 2021), in the plain form of Beyer et al. (2022)."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Lt, Semantic
from trainer.models.layers.inputs import require_images
from trainer.models.layers.transformer_layers import Positions, Sizes, stack


def vit(  # noqa: PLR0913 - every option is a key of the configuration
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    patch: Annotated[int, Ge(1)] = 4,
    layers: Annotated[int, Ge(1)] = 6,
    width: Annotated[int, Ge(1)] = 128,
    heads: Annotated[int, Ge(1)] = 4,
    hidden: Annotated[int, Ge(1)] = 512,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.0,
) -> tf.keras.Model:
    """Build a transformer whose tokens are patches of an image; their mean is classified, [B, C].

    Images should be normalized.
    """
    rows, columns, _ = require_images("vit", input_shape)
    if rows % patch or columns % patch:
        raise ValueError(
            f"patch ({patch}) must divide the sides of the images, the dataset gives "
            f"{list(input_shape)}; choose another, or add dataset.image_size=[<height>,<width>]"
        )
    inputs = tf.keras.Input(input_shape, name="features")
    x = tf.keras.layers.Conv2D(width, patch, patch, name="patches")(inputs)
    x = tf.keras.layers.Reshape((-1, width), name="tokens")(x)
    sizes = Sizes(layers, width, heads, hidden, dropout)
    x = stack(Positions(name="positions")(x), sizes)
    x = tf.keras.layers.GlobalAveragePooling1D(name="mean")(x)
    outputs = tf.keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return tf.keras.Model(inputs, outputs, name="vit")
