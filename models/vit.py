"""A vision transformer (Dosovitskiy et al. 2021), in the plain form of Beyer et al. (2022)."""

from __future__ import annotations

from typing import Annotated, Any

import tensorflow as tf

from trainer.models.images import require_images

_EPSILON = 1e-6


def vit(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    patch: Annotated[int, ">= 1"] = 4,
    width: Annotated[int, ">= 1"] = 128,
    depth: Annotated[int, ">= 1"] = 6,
    heads: Annotated[int, ">= 1"] = 4,
    dropout: Annotated[float, ">= 0, < 1"] = 0.0,
) -> tf.keras.Model:
    """Build a vision transformer from images [B, height, width, channels] to logits [B, C] float32.

    Patches are tokens with learned positions; layers are normalised before, not after; the mean of
    all tokens is classified. Small enough, by default, for images of 8 to 32 pixels.

    Args:
        input_shape: (height, width, channels); the images should be normalised.
        num_classes: how many logits.
        patch: the side of a patch, in pixels.
        width: numbers of a token; the hidden layer of a block has four times as many.
        depth: blocks of attention and a hidden layer.
        heads: parts of the attention, each of width / heads.
        dropout: the share of activations dropped before the first block and after each part of one.

    Raises:
        ValueError: the features are not images, or cannot be cut into such patches; or the width
            cannot be divided among the heads.
    """
    height, length, _ = require_images("vit", input_shape)
    _check(input_shape, patch, width, heads)
    inputs = tf.keras.Input(input_shape, name="features")
    x = tf.keras.layers.Conv2D(width, patch, patch, name="patches")(inputs)
    x = tf.keras.layers.Reshape((height // patch * (length // patch), width), name="tokens")(x)
    x = Positions(name="positions")(x)
    x = tf.keras.layers.Dropout(dropout, name="dropout")(x)
    for number in range(depth):
        x = _block(x, heads, dropout, f"block{number}")
    x = _normalise(x, "norm")
    x = tf.keras.layers.GlobalAveragePooling1D(name="pool")(x)
    outputs = tf.keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return tf.keras.Model(inputs, outputs, name="vit")


class Positions(tf.keras.layers.Layer):
    """Adds a learned vector to each token: [B, tokens, width] to the same."""

    def build(self, input_shape: Any) -> None:
        """Create the vectors."""
        self.positions = self.add_weight(
            "positions",
            input_shape[1:],
            initializer=tf.keras.initializers.RandomNormal(stddev=0.02),
        )
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Add them."""
        return inputs + tf.convert_to_tensor(self.positions)


def _check(input_shape: tuple[int, ...], patch: int, width: int, heads: int) -> None:
    """Refuse patches that do not cover the image, and heads that do not divide the width.

    Raises:
        ValueError: they do not.
    """
    if input_shape[0] % patch or input_shape[1] % patch:
        raise ValueError(
            f"patch ({patch}) must divide the sides of the images, the dataset gives "
            f"{list(input_shape)}; choose another, or add dataset.image_size=[<height>,<width>]"
        )
    if width % heads:
        raise ValueError(
            f"width ({width}) must be a multiple of heads ({heads}); "
            f"use {width - width % heads + heads}"
        )


def _block(x: tf.Tensor, heads: int, dropout: float, name: str) -> tf.Tensor:
    width = x.shape[-1]
    y = _normalise(x, f"{name}_norm1")
    y = tf.keras.layers.MultiHeadAttention(heads, width // heads, name=f"{name}_attention")(y, y)
    y = tf.keras.layers.Dropout(dropout, name=f"{name}_dropout1")(y)
    x = tf.keras.layers.Add(name=f"{name}_add1")([x, y])
    y = _normalise(x, f"{name}_norm2")
    y = tf.keras.layers.Dense(4 * width, activation="gelu", name=f"{name}_hidden")(y)
    y = tf.keras.layers.Dense(width, name=f"{name}_output")(y)
    y = tf.keras.layers.Dropout(dropout, name=f"{name}_dropout2")(y)
    return tf.keras.layers.Add(name=f"{name}_add2")([x, y])


def _normalise(x: tf.Tensor, name: str) -> tf.Tensor:
    return tf.keras.layers.LayerNormalization(epsilon=_EPSILON, name=name)(x)
