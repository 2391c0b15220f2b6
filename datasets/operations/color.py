"""Changes of color: each example by itself, and equal to the bit in any batch.

Images are [B, H, W, C] float32 in [0, 1], and so are the results. Means are taken over whole
numbers, because the order in which floats are added depends on the batch.
"""

from __future__ import annotations

import tensorflow as tf

_GRAY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in PIL
_LEVELS = 255.0


def brightness(images: tf.Tensor, delta: tf.Tensor) -> tf.Tensor:
    """Add a number to each image; `delta` is [B] float32."""
    return tf.clip_by_value(images + _per_image(delta), 0.0, 1.0)


def contrast(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Multiply each image's distance from its mean gray; `factor` is [B] float32."""
    return blend(tf.zeros_like(images) + mean_gray(images), images, factor)


def saturation(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Multiply each pixel's distance from its gray; `factor` is [B] float32."""
    return blend(tf.zeros_like(images) + gray(images), images, factor)


def hue(images: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
    """Turn the hue of images of three channels by a fraction of the circle, `turn` [B] float32."""
    hsv = tf.image.rgb_to_hsv(images)
    turned = hsv[..., :1] + _per_image(turn)
    return tf.image.hsv_to_rgb(tf.concat([turned - tf.floor(turned), hsv[..., 1:]], axis=-1))


def blend(start: tf.Tensor, images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Return start + factor (images - start), clipped to [0, 1]; beyond 1 it extrapolates."""
    return tf.clip_by_value(start + _per_image(factor) * (images - start), 0.0, 1.0)


def gray(images: tf.Tensor) -> tf.Tensor:
    """Return the gray of each pixel, [B, H, W, 1]."""
    if images.shape[-1] != 3:
        return images[..., :1]
    red, green, blue = (images[..., channel : channel + 1] for channel in range(3))
    return _GRAY[0] * red + _GRAY[1] * green + _GRAY[2] * blue


def mean_gray(images: tf.Tensor) -> tf.Tensor:
    """Return the mean gray of each image, [B, 1, 1, 1], of pixels in 256 levels."""
    total = tf.reduce_sum(levels(gray(images)), axis=[1, 2, 3], keepdims=True)
    count = images.shape[1] * images.shape[2] * _LEVELS
    return tf.cast(total, tf.float32) / count


def levels(images: tf.Tensor) -> tf.Tensor:
    """Return pixels as int32 in 0..255."""
    return tf.cast(tf.round(images * _LEVELS), tf.int32)


def pixels(numbers: tf.Tensor) -> tf.Tensor:
    """Return int32 in 0..255 as pixels."""
    return tf.cast(numbers, tf.float32) / _LEVELS


def _per_image(numbers: tf.Tensor) -> tf.Tensor:
    return numbers[:, None, None, None]
