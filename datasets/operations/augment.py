"""Data augmentation: random changes of a batch of images in training.

An augmentation works on each example alone, so an example comes out the same to the bit in any
batch; only mixup and CutMix join two neighbors. Its random numbers are fixed columns of
`draws`, [B, num_draws] float32 in [0, 1), so switching one augmentation on or off does not change
what the others draw.

To add one, write a function with its own column, an option of `Augmentation`, and a line in
`conf/augment/none.yaml`; every image dataset then has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import tensorflow as tf

from trainer.annotations import Ge, Le
from trainer.datasets.images.framing import random_box, resize_boxes
from trainer.datasets.operations import color, mixing
from trainer.datasets.operations.random_operations import DRAWS, MAX_MAGNITUDE, rand_augment

FLIP_COLUMN = 0
CROP_COLUMNS = (1, 2)  # down, across
BRIGHTNESS_COLUMN = 3
BOX_COLUMNS = (4, 5, 6, 7)  # area, proportions, down, across
CONTRAST_COLUMN = 8
SATURATION_COLUMN = 9
HUE_COLUMN = 10
MIXING_COLUMNS = range(11, 11 + mixing.DRAWS)
FIRST_RANDAUGMENT_COLUMN = 16


class Augmentation:
    """The augmentations of a dataset.

    In this order: min_area (Szegedy et al. 2015), flip, crop, brightness, contrast, saturation,
    hue, randaugment (Cubuk et al. 2020) with its magnitude; then mixup (Zhang et al. 2018) and
    cutmix (Yun et al. 2019), of which each image gets one if both are chosen.

    Attributes:
        min_area: the least fraction of an image in the random box that image files are cut to when
            they are read; 0: they are not cut. Others are cut by `apply`.
        num_draws: random numbers per example: up to the last column that is in use.
        group_size: how many neighbors in a batch `mix` joins; 1: none.
    """

    def __init__(  # noqa: PLR0913 - every option is a key of the configuration
        self,
        *,
        min_area: Annotated[float, Ge(0), Le(1)] = 0.0,
        flip: bool = False,
        crop: Annotated[int, Ge(0)] = 0,
        brightness: Annotated[float, Ge(0), Le(1)] = 0.0,
        contrast: Annotated[float, Ge(0), Le(1)] = 0.0,
        saturation: Annotated[float, Ge(0), Le(1)] = 0.0,
        hue: Annotated[float, Ge(0), Le(0.5)] = 0.0,
        randaugment: Annotated[int, Ge(0)] = 0,
        magnitude: Annotated[float, Ge(0), Le(10)] = 0.0,
        mixup: Annotated[float, Ge(0)] = 0.0,
        cutmix: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        """Take the options, which `conf/augment/none.yaml` explains one by one.

        Raises:
            ValueError: randaugment and magnitude do not go together.
        """
        _check_magnitude(randaugment, magnitude)
        self.min_area = min_area
        self._flip = flip
        self._crop = crop
        self._color = {
            "brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue
        }  # fmt: skip
        self._randaugment = randaugment
        self._magnitude = magnitude
        self._mixing = mixing.Mixing(mixup, cutmix) if mixup or cutmix else None
        self.group_size = mixing.GROUP_SIZE if self._mixing else 1
        last_columns = (
            (flip, FLIP_COLUMN),
            (crop, CROP_COLUMNS[-1]),
            (min_area, BOX_COLUMNS[-1]),
            *((self._color[name], column) for name, _, column in _COLORS),
            (self._mixing, MIXING_COLUMNS[-1]),
            (randaugment, FIRST_RANDAUGMENT_COLUMN + DRAWS * randaugment - 1),
        )
        self.num_draws = max((column + 1 for used, column in last_columns if used), default=0)

    def check(self, input_shape: tuple[int, ...]) -> None:
        """Raise if the options do not suit images of this shape."""
        shorter_side = min(input_shape[:2])
        if self._crop >= shorter_side:
            raise ValueError(
                f"augment.crop ({self._crop}) must be less than the images' shorter side, "
                f"{shorter_side}"
            )
        for name in ("saturation", "hue"):
            if self._color[name] and input_shape[2] != 3:
                raise ValueError(
                    f"augment.{name} ({self._color[name]}) needs images of 3 channels, these "
                    f"have {input_shape[2]}; add augment.{name}=0"
                )

    def apply(
        self,
        images: tf.Tensor,
        draws: tf.Tensor,
        *,
        is_cut: bool = False,
        fill: Sequence[float] = (0.0,),
    ) -> tf.Tensor:
        """Return the images, [B, H, W, C] float32 in [0, 1], with every change of single images.

        Args:
            draws: [B, num_draws] float32 in [0, 1).
            is_cut: whether the images are random boxes already.
        """
        if self.min_area and not is_cut:
            images = cut_box(images, draws, self.min_area)
        if self._flip:
            images = flip(images, draws)
        if self._crop:
            images = crop(images, draws, self._crop, fill)
        for name, change, column in _COLORS:
            if limit := self._color[name]:
                delta = (draws[:, column] * 2.0 - 1.0) * limit
                images = change(images, delta)
        if self._randaugment:
            images = rand_augment(images, draws[:, FIRST_RANDAUGMENT_COLUMN:], self._magnitude)
        return images

    def check_masks(self) -> None:
        """Raise a ValueError if a change moves pixels of an image, but not those of a mask."""
        unusable = {
            "min_area": self.min_area,
            "randaugment": self._randaugment,
            "mixup or augment.cutmix": self._mixing,
        }
        for name, value in unusable.items():
            if value:
                raise ValueError(
                    f"augment.{name} cannot be used with masks, whose pixels it does not move; of "
                    "the changes of place there are augment.flip and augment.crop"
                )

    def apply_to_masks(self, masks: tf.Tensor, draws: tf.Tensor, fill: int) -> tf.Tensor:
        """Return masks, [B, H, W] integers, moved as `apply` moves images with the same draws.

        Args:
            fill: the class of the pixels that `crop` pads with.
        """
        masks = masks[..., None]
        if self._flip:
            masks = flip(masks, draws)
        if self._crop:
            masks = crop(masks, draws, self._crop, (fill,))
        return masks[..., 0]

    def mix(self, batch: dict[str, Any], draws: tf.Tensor, num_classes: int) -> dict[str, Any]:
        """Return the batch with mixup or CutMix, if they are chosen.

        See `mixing.Mixing.apply`.
        """
        if self._mixing is None:
            return batch
        columns = draws[:, MIXING_COLUMNS[0] : MIXING_COLUMNS[-1] + 1]
        return self._mixing.apply(batch, columns, num_classes)


def _check_magnitude(randaugment: int, magnitude: float) -> None:
    if magnitude and not randaugment:
        raise ValueError(
            f"magnitude ({magnitude}) is that of RandAugment; add augment.randaugment=2"
        )
    if randaugment and not 0 < magnitude <= MAX_MAGNITUDE:
        raise ValueError(
            f"magnitude ({magnitude}) must be > 0 and <= 10 with randaugment ({randaugment}); "
            "add augment.magnitude=9"
        )


def cut_box(images: tf.Tensor, draws: tf.Tensor, min_area: float) -> tf.Tensor:
    """Resize a random box of each image, [B, H, W, C] float32, to the size of the image."""
    size = (images.shape[1], images.shape[2])
    box = random_box(*size, size, min_area, tf.gather(draws, BOX_COLUMNS, axis=1))
    return resize_boxes(images, box)


def flip(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Mirror half of the images, [B, H, W, C], left to right."""
    mirrored = draws[:, FLIP_COLUMN] < 0.5
    return tf.where(mirrored[:, None, None, None], tf.reverse(images, axis=[2]), images)


def crop(
    images: tf.Tensor, draws: tf.Tensor, margin: int, fill: Sequence[float] = (0.0,)
) -> tf.Tensor:
    """Shift each image, [B, H, W, C], by up to `margin` pixels each way.

    The image is padded, and a window of the original size is cut out at random.

    Args:
        fill: what it is padded with, one number or one per channel. The mean of all images is 0
            once they are normalized, as He et al. (2016) pad them.
    """
    height = images.shape[1]
    width = images.shape[2]
    # floor(draw * n) < n for every float32 draw < 1 as long as n is small: all offsets are equally
    # likely.
    offsets = tf.cast(
        tf.stack([draws[:, column] for column in CROP_COLUMNS], axis=1) * (2 * margin + 1), tf.int32
    )
    margins = [[margin, margin], [margin, margin]]
    padded = tf.pad(images, [[0, 0], *margins, [0, 0]])
    if any(fill):
        is_inside = tf.pad(tf.ones([height, width], tf.bool), margins)
        padded = tf.where(is_inside[None, :, :, None], padded, tf.constant(fill, images.dtype))
    rows = tf.gather(padded, offsets[:, :1] + tf.range(height), axis=1, batch_dims=1)
    return tf.gather(rows, offsets[:, 1:] + tf.range(width), axis=2, batch_dims=1)


_COLORS = (
    ("brightness", color.brightness, BRIGHTNESS_COLUMN),
    ("contrast", lambda images, delta: color.contrast(images, 1.0 + delta), CONTRAST_COLUMN),
    ("saturation", lambda images, delta: color.saturation(images, 1.0 + delta), SATURATION_COLUMN),
    ("hue", color.hue, HUE_COLUMN),
)
"""Option, the change by a number between minus and plus the option's value, and its column."""
