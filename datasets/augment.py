"""Augmentations: pure functions of a whole batch of images and of random numbers handed in by the caller.

An augmentation works on each example alone, so an example comes out the same to the bit in whatever batch it is. Its
random numbers are fixed columns of `draws`, [B, num_draws] float32 in [0, 1); switching one augmentation on or off leaves
what the others draw alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

FLIP_COLUMN = 0
CROP_COLUMNS = (1, 2)  # down, across
BRIGHTNESS_COLUMN = 3


def flip(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Mirrors half of the images, [B, H, W, C], left to right."""
    mirrored = draws[:, FLIP_COLUMN] < 0.5
    return tf.where(mirrored[:, None, None, None], tf.reverse(images, axis=[2]), images)


def crop(images: tf.Tensor, draws: tf.Tensor, margin: int) -> tf.Tensor:
    """Shifts each image, [B, H, W, C], by up to `margin` pixels each way: pads with zeros, and cuts back at random."""
    height, width = images.shape[1], images.shape[2]
    # floor(draw * n) is below n for every float32 draw < 1 as long as n is small, so that each offset is equally likely.
    offsets = tf.cast(tf.stack([draws[:, column] for column in CROP_COLUMNS], axis=1) * (2 * margin + 1), tf.int32)
    padded = tf.pad(images, [[0, 0], [margin, margin], [margin, margin], [0, 0]])
    rows = tf.gather(padded, offsets[:, :1] + tf.range(height), axis=1, batch_dims=1)
    return tf.gather(rows, offsets[:, 1:] + tf.range(width), axis=2, batch_dims=1)


def brightness(images: tf.Tensor, draws: tf.Tensor, max_delta: float) -> tf.Tensor:
    """Adds one number in [-max_delta, max_delta) to each image, [B, H, W, C] float32 in [0, 1], and clips to [0, 1]."""
    delta = (draws[:, BRIGHTNESS_COLUMN] * 2.0 - 1.0) * max_delta
    return tf.clip_by_value(images + delta[:, None, None, None], 0.0, 1.0)


def normalise(images: tf.Tensor, mean: Sequence[float], std: Sequence[float]) -> tf.Tensor:
    """Gives (image - mean) / std for images [B, H, W, C] float32; mean and std have one number, or one per channel."""
    return (images - tf.constant(mean, images.dtype)) / tf.constant(std, images.dtype)


def resize(images: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Resizes images [B, H, W, C] to `size` (height, width), bilinear, as float32."""
    # Not antialiased: that kernel exists for CPUs only, and XLA does not know it.
    return tf.image.resize(images, size)
