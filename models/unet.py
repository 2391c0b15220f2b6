"""A small U-Net (Ronneberger et al. 2015): from an image to the class of each of its pixels."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge, Semantic
from trainer.models.layers.inputs import require_images


def unet(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Annotated[int, Ge(1)] = 16,
    depth: Annotated[int, Ge(1)] = 2,
    batch_norm: bool = True,
    synchronized: Annotated[bool, Semantic()] = True,
) -> tf.keras.Model:
    """Build a U-Net with padded convolutions, to logits [B, H, W, num_classes] float32.

    Each level on the way down has two convolutions, then pooling to half the size; each on the way
    up enlarges, takes in what the level below it had before pooling, and has two convolutions.
    """
    require_images("unet", input_shape, multiple_of=2**depth)
    norm = {"batch_norm": batch_norm, "synchronized": synchronized}
    inputs = x = tf.keras.Input(input_shape, name="features")
    levels = []
    for level in range(depth):
        x = _convolutions(x, width * 2**level, f"down{level}", **norm)
        levels.append(x)
        x = tf.keras.layers.MaxPooling2D(name=f"down{level}_pool")(x)
    x = _convolutions(x, width * 2**depth, "middle", **norm)
    for level in reversed(range(depth)):
        name = f"up{level}"
        x = tf.keras.layers.Conv2DTranspose(width * 2**level, 2, 2, name=f"{name}_enlarge")(x)
        x = tf.keras.layers.Concatenate(name=f"{name}_join")([levels[level], x])
        x = _convolutions(x, width * 2**level, name, **norm)
    outputs = tf.keras.layers.Conv2D(num_classes, 1, dtype="float32", name="logits")(x)
    return tf.keras.Model(inputs, outputs, name="unet")


def _convolutions(
    x: tf.Tensor, filters: int, name: str, *, batch_norm: bool, synchronized: bool
) -> tf.Tensor:
    for number in range(2):
        stem = f"{name}_conv{number}"
        x = tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=not batch_norm, name=stem)(
            x
        )
        if batch_norm:
            x = tf.keras.layers.BatchNormalization(
                momentum=0.9, synchronized=synchronized, name=f"{stem}_norm"
            )(x)
        x = tf.keras.layers.ReLU(name=f"{stem}_relu")(x)
    return x
