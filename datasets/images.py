"""What every dataset of images has in common: its splits, and the way from stored pixels to what the model sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.datasets import augment
from trainer.datasets.image_files import BadFiles, FileSplit, decode


@dataclass(frozen=True, kw_only=True)
class ImageDataset:
    """Images and labels, with the augmentations and the normalisation that were asked for.

    Attributes:
        train: the split that is trained on.
        test: the split that is evaluated.
        image_shape: (height, width, channels) of what the splits' `fetch` gives.
        num_classes: how many classes `label` counts.
        class_names: their names, in order; None: they have none but their numbers.
        max_value: the stored value that stands for white; pixels are divided by it.
        image_size: resize to (height, width), or None. Everything after it counts pixels of the resized image.
        antialias: whether to average when an image file is made smaller.
        flip: in training, mirror half of the images.
        crop: in training, shift by up to so many pixels.
        brightness: in training, change the brightness by up to so much, of 1.
        mean: what is subtracted last, for each channel or for all; None is 0.
        std: what is divided by last; None is 1.

    Raises:
        ValueError: an option does not suit images of this shape.
    """

    train: Any
    test: Any
    image_shape: tuple[int, int, int]
    num_classes: int
    class_names: Sequence[str] | None = None
    max_value: float = 255.0
    image_size: Sequence[int] | None = None
    antialias: bool = False
    flip: bool = False
    crop: int = 0
    brightness: float = 0.0
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None:
            check_size(self.image_size)
        if self.crop >= min(self.input_shape[:2]):
            raise ValueError(f"crop ({self.crop}) must be less than the images' shorter side, {min(self.input_shape[:2])}")
        channels = self.image_shape[2]
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, channels):
                raise ValueError(f"{name} ({list(values)}) must have one number, or one for each of the {channels} channels")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"std ({list(self.std)}) must be positive")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(height, width, channels) as the model sees them."""
        return (*(self.image_size or self.image_shape[:2]), self.image_shape[2])

    @property
    def num_draws(self) -> int:
        """How many random numbers `transform` takes for each example: up to the last column that is in use."""
        columns = [(self.flip, augment.FLIP_COLUMN), (self.crop, augment.CROP_COLUMNS[-1]), (self.brightness, augment.BRIGHTNESS_COLUMN)]
        return max((column + 1 for used, column in columns if used), default=0)

    def decode(self, content: tf.Tensor) -> tf.Tensor:
        """Decodes the bytes of an image file, scalar string; gives what the splits' `fetch` gives of one example, [*image_shape]."""
        return decode(content, self.image_shape, antialias=self.antialias, max_value=self.max_value)

    def files(self, paths: Sequence[Path]) -> FileSplit:
        """Gives a split without labels of any image files; those that cannot be read have weight 0."""
        bad = BadFiles(len(paths))
        return FileSplit(paths, None, self.image_shape, antialias=self.antialias, bad=bad, max_value=self.max_value)

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        """Turns a fetched batch into what the model sees.

        Args:
            batch: with `features` [B, *image_shape], uint8 or float32 in [0, max_value]. All else is handed through.
            draws: [B, num_draws] float32 in [0, 1); None in evaluation, when nothing is augmented.

        Returns:
            The batch with `features` [B, *input_shape] float32, in [0, 1] unless mean or std moves them.
        """
        images = tf.cast(batch["features"], tf.float32) / self.max_value
        if self.input_shape != self.image_shape:
            images = augment.resize(images, self.input_shape[:2])
        if draws is not None:
            images = self._augment(images, draws)
        if self.mean is not None or self.std is not None:
            images = augment.normalise(images, self.mean or [0.0], self.std or [1.0])
        return {**batch, "features": images}

    def _augment(self, images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        if self.flip:
            images = augment.flip(images, draws)
        if self.crop:
            images = augment.crop(images, draws, self.crop)
        if self.brightness:
            images = augment.brightness(images, draws, self.brightness)
        return images


def check_size(size: Sequence[int]) -> None:
    """Checks that an `image_size` is two positive numbers.

    Raises:
        ValueError: it is not.
    """
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"image_size ({list(size)}) must be [height, width], both at least 1")
