"""Data augmentation: random changes of a batch of images in training.

An augmentation works on each example alone, so an example comes out the same to the bit in whatever
batch it is. Its random numbers are fixed columns of `draws`, [B, num_draws] float32 in [0, 1), so
switching one augmentation on or off does not change what the others draw.

To add one, write a function with a column of its own, an option of `Augmentation`, and a line in
`conf/dataset/augment/default.yaml`; every image dataset then has it.
"""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

FLIP_COLUMN = 0
CROP_COLUMNS = (1, 2)  # down, across
BRIGHTNESS_COLUMN = 3


class Augmentation:
    """The augmentations of a dataset, in the order flip, crop, brightness.

    Attributes:
        num_draws: random numbers per example: up to the last column that is in use.
    """

    def __init__(
        self,
        *,
        flip: bool = False,
        crop: Annotated[int, ">= 0"] = 0,
        brightness: Annotated[float, ">= 0, <= 1"] = 0.0,
    ) -> None:
        """Take the options.

        Args:
            flip: mirror half of the images, left to right.
            crop: shift each image by up to so many pixels, each way.
            brightness: change each image's brightness by up to so much, where white is 1.
        """
        self._flip = flip
        self._crop = crop
        self._brightness = brightness
        last_columns = (
            (flip, FLIP_COLUMN),
            (crop, CROP_COLUMNS[-1]),
            (brightness, BRIGHTNESS_COLUMN),
        )
        self.num_draws = max((column + 1 for used, column in last_columns if used), default=0)

    def check(self, input_shape: tuple[int, ...]) -> None:
        """Raise if the options do not suit images of this shape.

        Args:
            input_shape: (height, width, channels).

        Raises:
            ValueError: a shift would leave nothing of the image.
        """
        shorter_side = min(input_shape[:2])
        if self._crop >= shorter_side:
            raise ValueError(
                f"augment.crop ({self._crop}) must be less than the images' shorter side, "
                f"{shorter_side}"
            )

    def apply(self, images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Return the images, [B, H, W, C] float32 in [0, 1], with every chosen augmentation.

        Args:
            images: [B, H, W, C] float32 in [0, 1].
            draws: [B, num_draws] float32 in [0, 1).
        """
        if self._flip:
            images = flip(images, draws)
        if self._crop:
            images = crop(images, draws, self._crop)
        if self._brightness:
            images = brightness(images, draws, self._brightness)
        return images


def flip(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Mirror half of the images, [B, H, W, C], left to right."""
    mirrored = draws[:, FLIP_COLUMN] < 0.5
    return tf.where(mirrored[:, None, None, None], tf.reverse(images, axis=[2]), images)


def crop(images: tf.Tensor, draws: tf.Tensor, margin: int) -> tf.Tensor:
    """Shift each image, [B, H, W, C], by up to `margin` pixels each way.

    The image is padded with zeros, and a window of its own size is cut out at random.
    """
    height = images.shape[1]
    width = images.shape[2]
    # floor(draw * n) < n for every float32 draw < 1 as long as n is small: all offsets are equally
    # likely.
    offsets = tf.cast(
        tf.stack([draws[:, column] for column in CROP_COLUMNS], axis=1) * (2 * margin + 1), tf.int32
    )
    padded = tf.pad(images, [[0, 0], [margin, margin], [margin, margin], [0, 0]])
    rows = tf.gather(padded, offsets[:, :1] + tf.range(height), axis=1, batch_dims=1)
    return tf.gather(rows, offsets[:, 1:] + tf.range(width), axis=2, batch_dims=1)


def brightness(images: tf.Tensor, draws: tf.Tensor, max_delta: float) -> tf.Tensor:
    """Add one number in [-max_delta, max_delta) to each image, and clip to [0, 1].

    Args:
        images: [B, H, W, C] float32 in [0, 1].
        draws: [B, num_draws] float32 in [0, 1).
        max_delta: the largest change.
    """
    delta = (draws[:, BRIGHTNESS_COLUMN] * 2.0 - 1.0) * max_delta
    return tf.clip_by_value(images + delta[:, None, None, None], 0.0, 1.0)
