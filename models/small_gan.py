"""Generator and discriminator of small images, such as digits of 8 x 8 pixels."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge
from trainer.models.layers.inputs import require_images
from trainer.models.layers.spectral import SpectralConv2D, SpectralDense


def small_generator(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    latent: Annotated[int, Ge(1)] = 32,
    width: Annotated[int, Ge(1)] = 32,
    batch_norm: bool = True,
) -> tf.keras.Model:
    """Build dense layer, enlargement, two convolutions: from [B, latent] to images in [0, 1]."""
    height, breadth, channels = require_images("small_generator", input_shape, multiple_of=2)
    latents = tf.keras.Input([latent], name="latents")
    x = tf.keras.layers.Dense(
        height // 2 * (breadth // 2) * 2 * width, use_bias=not batch_norm, name="first"
    )(latents)
    x = tf.keras.layers.Reshape([height // 2, breadth // 2, 2 * width], name="grid")(x)
    x = _hidden(x, batch_norm, "first")
    x = tf.keras.layers.UpSampling2D(name="enlarge")(x)
    x = tf.keras.layers.Conv2D(width, 3, padding="same", use_bias=not batch_norm, name="second")(x)
    x = _hidden(x, batch_norm, "second")
    x = tf.keras.layers.Conv2D(channels, 3, padding="same", dtype="float32", name="pixels")(x)
    return tf.keras.Model(
        latents, tf.keras.layers.Activation("sigmoid", name="images")(x), name="small_generator"
    )


def small_discriminator(
    input_shape: tuple[int, ...], num_classes: int, *, width: Annotated[int, Ge(1)] = 32
) -> tf.keras.Model:
    """Build three convolutions, all layers spectrally normalized, to scores, large for real."""
    require_images("small_discriminator", input_shape)
    images = tf.keras.Input(input_shape, name="features")
    x = tf.keras.layers.Rescaling(2.0, -1.0, name="scale")(images)
    for number, (filters, size, stride) in enumerate(
        ((width, 3, 1), (2 * width, 4, 2), (2 * width, 3, 1))
    ):
        x = SpectralConv2D(filters, size, stride, padding="same", name=f"conv{number}")(x)
        x = tf.keras.layers.LeakyReLU(0.1, name=f"conv{number}_relu")(x)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    scores = SpectralDense(num_classes, dtype="float32", name="score")(x)
    return tf.keras.Model(images, scores, name="small_discriminator")


def _hidden(x: tf.Tensor, batch_norm: bool, name: str) -> tf.Tensor:
    if batch_norm:
        x = tf.keras.layers.BatchNormalization(
            momentum=0.9, synchronized=True, name=f"{name}_norm"
        )(x)
    return tf.keras.layers.ReLU(name=f"{name}_relu")(x)
