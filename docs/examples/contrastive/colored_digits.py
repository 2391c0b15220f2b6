"""Handwritten digits in random colors, whose pixels depend little on their class, in two views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tensorflow as tf

from trainer.annotations import Ge, Lt
from trainer.datasets.digits import read_digits
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit

_WHITE = 16.0


@dataclass(frozen=True, kw_only=True)
class TwoViews(ImageDataset):
    """Images that are augmented twice in training: `views` [B, 2, H, W, C]; `features` are one."""

    @property
    def num_draws(self):
        return 2 * super().num_draws

    def transform(self, batch, draws):
        if draws is None or not self.num_draws:
            return super().transform(batch, draws)
        views = [
            super(TwoViews, self).transform(batch, own)["features"]
            for own in tf.split(draws, 2, axis=1)
        ]
        return {**batch, "features": views[0], "views": tf.stack(views, axis=1)}


def colored_digits(
    *,
    noise: Annotated[float, Ge(0)] = 0.05,
    seed: Annotated[int, Ge(0), Lt(4294967296)] = 0,
    augment: Augmentation | None = None,
) -> TwoViews:
    """The handwritten digits, 8 x 8 x 3, each of a random color on another, with noise.

    Neighbors by their pixels are of the same colors rather than of the same digit. An image
    follows from the seed, its split and its number alone.
    """
    splits = [
        ArraySplit(_color(images, noise, [seed, number]), labels)
        for number, (images, labels) in enumerate(read_digits())
    ]
    return TwoViews(
        train=splits[0],
        test=splits[1],
        image_shape=(8, 8, 3),
        num_classes=10,
        augment=augment,
    )


def _color(digits: np.ndarray, noise: float, seeds: list[int]) -> np.ndarray:
    """Return digits, [N, 8, 8, 1] uint8, in colors, [N, 8, 8, 3] uint8."""
    images = np.empty((*digits.shape[:3], 3), np.uint8)
    for number, digit in enumerate(digits):
        # RandomState, because numpy promises never to change its stream.
        random = np.random.RandomState([*seeds, number])
        ground = random.uniform(0.0, 0.7, 3)
        color = random.uniform(0.3, 1.0, 3)
        image = ground + (color - ground) * (digit / _WHITE)
        image += noise * random.standard_normal(image.shape)
        images[number] = np.clip(image * 255.0, 0, 255)
    return images
