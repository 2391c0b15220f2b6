"""Framing: which part of an image of any size becomes an example of a fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

_LEAST_RATIO = 3 / 4
_LARGEST_RATIO = 4 / 3

Box: TypeAlias = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
"""Top, left, height and width in pixels, int32; scalars, or [B]."""


@dataclass(frozen=True)
class Framing:
    """How an image is brought to a fixed size.

    Attributes:
        crop: in evaluation, the fraction of the largest middle box that has the proportions of
            the result; 0.875 is usual for ImageNet. None: the whole image, of any
            proportions.
        min_area: in training, the least fraction of the image in a random box; 0: as in evaluation.
        antialias: whether to average when an image is made smaller.
    """

    crop: float | None = None
    min_area: float = 0.0
    antialias: bool = False

    def apply(
        self,
        image: tf.Tensor,
        size: tuple[int, int],
        draws: tf.Tensor | None,
        *,
        method: str = "bilinear",
    ) -> tf.Tensor:
        """Return the framed image, [*size, C] float32; of the method `nearest` in its own dtype.

        Args:
            image: [H, W, C] of any dtype.
            draws: [4] float32 in [0, 1); None in evaluation.
        """
        shape = tf.shape(image)
        box = None
        if draws is not None and self.min_area:
            box = random_box(shape[0], shape[1], size, self.min_area, draws)
        elif self.crop is not None:
            box = center_box(shape[0], shape[1], size, self.crop)
        if box is not None:
            top, left, height, width = box
            image = image[top : top + height, left : left + width]
        return tf.image.resize(image, size, method, antialias=self.antialias)


def center_box(height: tf.Tensor, width: tf.Tensor, size: tuple[int, int], share: float) -> Box:
    """Return a box in the middle: `share` of the largest one with the proportions of `size`."""
    ratio = size[1] / size[0]
    box_height = share * tf.minimum(_float(height), _float(width) / ratio)
    box_height, box_width = _pixels(box_height, height), _pixels(box_height * ratio, width)
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def random_box(
    height: tf.Tensor, width: tf.Tensor, size: tuple[int, int], min_area: float, draws: tf.Tensor
) -> Box:
    """Return a random box (Szegedy et al. 2015).

    Its area is uniform in [min_area, 1] of the image; its proportions are those of the result times
    a factor uniform in [3/4, 4/3]. A box that is too long for the image is cut.

    Args:
        size: (height, width) of the result.
        draws: [..., 4] float32 in [0, 1): for area, proportions, down and across.
    """
    area = _float(height) * _float(width) * (min_area + (1.0 - min_area) * draws[..., 0])
    factor = _LEAST_RATIO + (_LARGEST_RATIO - _LEAST_RATIO) * draws[..., 1]
    ratio = factor * (size[1] / size[0])
    box_height = _pixels(tf.sqrt(area / ratio), height)
    box_width = _pixels(tf.sqrt(area * ratio), width)
    top = tf.cast(draws[..., 2] * _float(height - box_height + 1), tf.int32)
    left = tf.cast(draws[..., 3] * _float(width - box_width + 1), tf.int32)
    return top, left, box_height, box_width


def resize_boxes(images: tf.Tensor, boxes: Box) -> tf.Tensor:
    """Return the box of each image, [B, H, W, C] float32, enlarged to the size of the image.

    Bilinear, like `tf.image.resize`, but with a box for each example.
    """
    top, left, height, width = boxes
    return _resample(_resample(images, top, height, 1), left, width, 2)


def _resample(images: tf.Tensor, start: tf.Tensor, length: tf.Tensor, axis: int) -> tf.Tensor:
    """Interpolate [B, H, W, C] along an axis, from `length` pixels at `start`, each [B] int32."""
    size = images.shape[axis]
    centers = (tf.range(size, dtype=tf.float32) + 0.5) * (_float(length)[:, None] / size) - 0.5
    last = _float(length)[:, None] - 1.0
    centers = tf.clip_by_value(centers, 0.0, last)
    lower = tf.floor(centers)
    shape = [-1, size, 1, 1] if axis == 1 else [-1, 1, size, 1]
    weight = tf.reshape(centers - lower, shape)
    before = tf.cast(lower, tf.int32) + start[:, None]
    after = tf.cast(tf.minimum(lower + 1.0, last), tf.int32) + start[:, None]
    first = tf.gather(images, before, axis=axis, batch_dims=1)
    second = tf.gather(images, after, axis=axis, batch_dims=1)
    return first + weight * (second - first)


def _float(number: tf.Tensor) -> tf.Tensor:
    return tf.cast(number, tf.float32)


def _pixels(length: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """Round a length to whole pixels, at least one and at most `limit`."""
    return tf.clip_by_value(tf.cast(tf.round(length), tf.int32), 1, limit)
