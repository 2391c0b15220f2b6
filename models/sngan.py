"""The residual generator and discriminator of SN-GAN for 32 x 32 pixels (Miyato et al. 2018).

Table 4 of "Spectral Normalization for Generative Adversarial Networks"; the blocks are those of
Gulrajani et al. 2017.
"""

from __future__ import annotations

import math
from typing import Annotated

import tensorflow as tf

from trainer.annotations import Ge
from trainer.models.layers.inputs import require_images
from trainer.models.layers.spectral import SpectralConv2D, SpectralDense

_ENLARGED = 8
"""A generator doubles its image three times, so its sides are multiples of this."""


def sngan_generator(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    latent: Annotated[int, Ge(1)] = 128,
    width: Annotated[int, Ge(1)] = 256,
    batch_norm: bool = True,
) -> tf.keras.Model:
    """Build a dense layer and three blocks that double the image: from [B, latent] to [0, 1]."""
    height, breadth, channels = require_images(
        "sngan_generator", input_shape, multiple_of=_ENLARGED
    )
    sides = (height // _ENLARGED, breadth // _ENLARGED)
    latents = tf.keras.Input([latent], name="latents")
    x = tf.keras.layers.Dense(
        sides[0] * sides[1] * width, kernel_initializer="glorot_uniform", name="first"
    )(latents)
    x = tf.keras.layers.Reshape([*sides, width], name="grid")(x)
    for number in range(3):
        x = _enlarging_block(x, width, batch_norm, f"block{number}")
    x = _normalized_relu(x, batch_norm, "last")
    x = tf.keras.layers.Conv2D(
        channels,
        3,
        padding="same",
        kernel_initializer="glorot_uniform",
        dtype="float32",
        name="pixels",
    )(x)
    x = tf.keras.layers.Activation("tanh", dtype="float32", name="tanh")(x)
    images = tf.keras.layers.Rescaling(0.5, 0.5, dtype="float32", name="images")(x)
    return tf.keras.Model(latents, images, name="sngan_generator")


def sngan_discriminator(
    input_shape: tuple[int, ...], num_classes: int, *, width: Annotated[int, Ge(1)] = 128
) -> tf.keras.Model:
    """Build four blocks, all layers spectrally normalized, to scores, large for real images."""
    require_images("sngan_discriminator", input_shape)
    images = tf.keras.Input(input_shape, name="features")
    x = tf.keras.layers.Rescaling(2.0, -1.0, name="scale")(images)
    x = _first_block(x, width, "block0")
    for number, shrinks in enumerate((True, False, False), start=1):
        x = _judging_block(x, width, shrinks, f"block{number}")
    x = tf.keras.layers.ReLU(name="last_relu")(x)
    # The sum over the pixels, as in the paper's own program: their mean, times their number.
    num_pixels = float(x.shape[1] * x.shape[2])
    x = tf.keras.layers.GlobalAveragePooling2D(name="mean")(x)
    x = tf.keras.layers.Rescaling(num_pixels, name="sum")(x)
    scores = SpectralDense(
        num_classes, kernel_initializer="glorot_uniform", dtype="float32", name="score"
    )(x)
    return tf.keras.Model(images, scores, name="sngan_discriminator")


def _enlarging_block(x: tf.Tensor, width: int, batch_norm: bool, name: str) -> tf.Tensor:
    shortcut = tf.keras.layers.UpSampling2D(name=f"{name}_shortcut_enlarge")(x)
    shortcut = _conv(width, 1, 1.0, f"{name}_shortcut")(shortcut)
    x = _normalized_relu(x, batch_norm, f"{name}_conv0")
    x = tf.keras.layers.UpSampling2D(name=f"{name}_enlarge")(x)
    x = _conv(width, 3, math.sqrt(2.0), f"{name}_conv0")(x)
    x = _normalized_relu(x, batch_norm, f"{name}_conv1")
    x = _conv(width, 3, math.sqrt(2.0), f"{name}_conv1")(x)
    return tf.keras.layers.Add(name=f"{name}_add")([x, shortcut])


def _first_block(x: tf.Tensor, width: int, name: str) -> tf.Tensor:
    """Halve the image; without a ReLU before the first convolution, which sees the pixels."""
    shortcut = tf.keras.layers.AveragePooling2D(name=f"{name}_shortcut_shrink")(x)
    shortcut = _spectral_conv(width, 1, 1.0, f"{name}_shortcut")(shortcut)
    x = _spectral_conv(width, 3, math.sqrt(2.0), f"{name}_conv0")(x)
    x = tf.keras.layers.ReLU(name=f"{name}_relu1")(x)
    x = _spectral_conv(width, 3, math.sqrt(2.0), f"{name}_conv1")(x)
    x = tf.keras.layers.AveragePooling2D(name=f"{name}_shrink")(x)
    return tf.keras.layers.Add(name=f"{name}_add")([x, shortcut])


def _judging_block(x: tf.Tensor, width: int, shrinks: bool, name: str) -> tf.Tensor:
    shortcut = x
    if shrinks:
        shortcut = _spectral_conv(width, 1, 1.0, f"{name}_shortcut")(x)
        shortcut = tf.keras.layers.AveragePooling2D(name=f"{name}_shortcut_shrink")(shortcut)
    for number in range(2):
        x = tf.keras.layers.ReLU(name=f"{name}_relu{number}")(x)
        x = _spectral_conv(width, 3, math.sqrt(2.0), f"{name}_conv{number}")(x)
    if shrinks:
        x = tf.keras.layers.AveragePooling2D(name=f"{name}_shrink")(x)
    return tf.keras.layers.Add(name=f"{name}_add")([x, shortcut])


def _normalized_relu(x: tf.Tensor, batch_norm: bool, name: str) -> tf.Tensor:
    if batch_norm:
        x = tf.keras.layers.BatchNormalization(
            momentum=0.9, epsilon=2e-5, synchronized=True, name=f"{name}_norm"
        )(x)
    return tf.keras.layers.ReLU(name=f"{name}_relu")(x)


def _conv(filters: int, size: int, gain: float, name: str) -> tf.keras.layers.Layer:
    initializer = _glorot(gain)
    return tf.keras.layers.Conv2D(
        filters, size, padding="same", kernel_initializer=initializer, name=name
    )


def _spectral_conv(filters: int, size: int, gain: float, name: str) -> tf.keras.layers.Layer:
    initializer = _glorot(gain)
    return SpectralConv2D(filters, size, padding="same", kernel_initializer=initializer, name=name)


def _glorot(gain: float) -> tf.keras.initializers.Initializer:
    """Return Glorot's uniform initializer, with all weights `gain` times as large."""
    return tf.keras.initializers.VarianceScaling(gain**2, "fan_avg", "uniform")
