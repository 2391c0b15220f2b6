"""RandAugment (Cubuk et al. 2020): a few operations at random, all of one strength.

The images of a batch are sorted by their operation, which is then computed for all of them:
there is no loop over images, and none depends on its batch. The geometric operations are one warp.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from trainer.datasets.operations import color

OPERATIONS = (
    "identity", "autocontrast", "equalize", "posterize", "solarize",
    "color", "contrast", "brightness", "sharpness",
    "rotate", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
DRAWS = 2  # random numbers of one operation: which, and its sign
MAX_MAGNITUDE = 10.0

# At the largest magnitude, as in AutoAugment (Cubuk et al. 2019).
_MAX_DEGREES = 30.0
_MAX_SHEAR = 0.3
_MAX_SHIFT = 0.45  # of the image's side
_MAX_CHANGE = 0.9  # of color, contrast, brightness and sharpness
_MAX_LOST_BITS = 4

_FILL = 0.5

_Function: TypeAlias = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
"""Of images, the operations and whether these go to the other side, [B, ...] each."""


def rand_augment(images: tf.Tensor, draws: tf.Tensor, magnitude: float) -> tf.Tensor:
    """Return the images after one operation on each for every pair of draws.

    Args:
        images: [B, H, W, C] float32 in [0, 1].
        draws: [B, DRAWS x operations] float32 in [0, 1).
        magnitude: strength, 0 to MAX_MAGNITUDE.
    """
    for first in range(0, draws.shape[1], DRAWS):
        choice = tf.cast(draws[:, first] * len(OPERATIONS), tf.int32)
        images = operate(images, choice, draws[:, first + 1] < 0.5, magnitude)
    return images


def operate(
    images: tf.Tensor, choice: tf.Tensor, is_negative: tf.Tensor, magnitude: float
) -> tf.Tensor:
    """Apply to each image the operation `choice`, [B] int32, in OPERATIONS.

    `is_negative`, [B] bool, is whether to turn, shift or change to the other side.
    """
    share = magnitude / MAX_MAGNITUDE
    rows = []
    results = []
    for names, function in _functions(share):
        numbers = tf.constant([OPERATIONS.index(name) for name in names])
        mine = tf.where(tf.reduce_any(choice[:, None] == numbers, axis=1))[:, 0]
        own = [tf.gather(x, mine) for x in (images, choice, is_negative)]
        rows.append(tf.cast(mine, tf.int32))
        results.append(function(*own))
    return tf.ensure_shape(tf.dynamic_stitch(rows, results), images.shape)


def _functions(share: float) -> list[tuple[tuple[str, ...], _Function]]:
    """Return the functions and which operations each computes, at a fraction of full strength."""
    lost_bits = round(_MAX_LOST_BITS * share)
    limit = 1.0 - share
    return [
        (("identity",), lambda images, *_: images),
        (("autocontrast",), lambda images, *_: autocontrast(images)),
        (("equalize",), lambda images, *_: equalize(images)),
        (("posterize",), lambda images, *_: posterize(images, lost_bits)),
        (("solarize",), lambda images, *_: tf.where(images < limit, images, 1.0 - images)),
        (("color",), _blend(share, color.gray)),
        (("contrast",), _blend(share, color.mean_gray)),
        (("brightness",), _blend(share, tf.zeros_like)),
        (("sharpness",), _blend(share, smooth)),
        (OPERATIONS[-5:], functools.partial(_warp, share)),
    ]


def autocontrast(images: tf.Tensor) -> tf.Tensor:
    """Stretch each channel from its darkest to its brightest value."""
    low = tf.reduce_min(images, axis=[1, 2], keepdims=True)
    width = tf.reduce_max(images, axis=[1, 2], keepdims=True) - low
    return tf.where(width > 0.0, tf.math.divide_no_nan(images - low, width), images)


def equalize(images: tf.Tensor) -> tf.Tensor:
    """Make each channel's histogram of 256 levels as flat as can be, as PIL does."""
    height, width, channels = images.shape[1:]
    rows = tf.shape(images)[0] * channels
    values = tf.reshape(tf.transpose(color.levels(images), [0, 3, 1, 2]), [rows, height * width])
    bins = tf.reshape(values + 256 * tf.range(rows)[:, None], [-1])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(bins), bins, 256 * rows)
    counts = tf.reshape(counts, [rows, 256])
    brightest = tf.reduce_max(values, axis=1)
    step = (height * width - tf.gather(counts, brightest, axis=1, batch_dims=1)) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True)
    table = (below + step[:, None] // 2) // tf.maximum(step[:, None], 1)
    table = tf.where(step[:, None] > 0, tf.minimum(table, 255), tf.range(256))
    equalized = tf.reshape(
        tf.gather(table, values, axis=1, batch_dims=1), [-1, channels, height, width]
    )
    return color.pixels(tf.transpose(equalized, [0, 2, 3, 1]))


def posterize(images: tf.Tensor, lost_bits: int) -> tf.Tensor:
    """Set the last bits of each of the 8-bit pixels to 0."""
    return color.pixels(color.levels(images) // 2**lost_bits * 2**lost_bits)


def smooth(images: tf.Tensor) -> tf.Tensor:
    """Return the mean of each pixel and its neighbors, itself five times; borders stay."""
    height, width = images.shape[1:3]
    if min(height, width) < 3:
        return images
    total = 4.0 * images[:, 1:-1, 1:-1]
    for down in range(3):
        for across in range(3):
            total += images[:, down : height - 2 + down, across : width - 2 + across]
    inside = tf.pad(total / 13.0, [[0, 0], [1, 1], [1, 1], [0, 0]])
    is_inside = tf.pad(tf.ones([height - 2, width - 2], tf.bool), [[1, 1], [1, 1]])
    return tf.where(is_inside[None, :, :, None], inside, images)


def _blend(share: float, plain: Callable[[tf.Tensor], tf.Tensor]) -> _Function:
    """Return a function that moves images away from what `plain` makes of them, or toward it."""
    change = _MAX_CHANGE * share

    def blended(images: tf.Tensor, choice: tf.Tensor, is_negative: tf.Tensor) -> tf.Tensor:
        factor = tf.where(is_negative, 1.0 - change, 1.0 + change)
        return color.blend(plain(images), images, factor)

    return blended


def _warp(share: float, images: tf.Tensor, choice: tf.Tensor, is_negative: tf.Tensor) -> tf.Tensor:
    """Rotate, shear or shift, about the middle; what comes from outside is gray."""
    height, width = images.shape[1:3]
    positive, negative = (
        tf.constant(_matrices(height, width, sign * share)) for sign in (1.0, -1.0)
    )
    rows = tf.where(is_negative[:, None], tf.gather(negative, choice), tf.gather(positive, choice))
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=rows,
        output_shape=[height, width],
        fill_value=_FILL,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )


def _matrices(height: int, width: int, share: float) -> list[tuple[float, ...]]:
    """Return for each operation the projection from a pixel to where it comes from."""
    angle = math.radians(_MAX_DEGREES * share)
    shear = _MAX_SHEAR * share
    linear = {
        "rotate": (math.cos(angle), math.sin(angle), -math.sin(angle), math.cos(angle)),
        "shear_x": (1.0, shear, 0.0, 1.0),
        "shear_y": (1.0, 0.0, shear, 1.0),
    }
    shift = {
        "translate_x": (_MAX_SHIFT * share * width, 0.0),
        "translate_y": (0.0, _MAX_SHIFT * share * height),
    }
    x, y = (width - 1) / 2, (height - 1) / 2
    matrices = []
    for name in OPERATIONS:
        a, b, c, d = linear.get(name, (1.0, 0.0, 0.0, 1.0))
        across, down = shift.get(name, (0.0, 0.0))
        matrices.append(
            (a, b, x - a * x - b * y + across, c, d, y - c * x - d * y + down, 0.0, 0.0)
        )
    return matrices
