"""Handwritten digits at random places, for learning without labels."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from trainer.datasets.arrays import ArraySplit
from trainer.datasets.augment import Augmentation
from trainer.datasets.digits import read_digits
from trainer.datasets.images import ImageDataset
from trainer.datasets.normalise import Normalisation

_SIDE = 8  # of a digit
_WHITE = 16.0


def scattered_digits(
    *,
    size: Annotated[int, ">= 8"] = 16,
    copies: Annotated[int, ">= 1"] = 2,
    noise: Annotated[float, ">= 0"] = 0.1,
    seed: Annotated[int, ">= 0, < 4294967296"] = 0,
    augment: Augmentation | None = None,
    normalise: Normalisation | None = None,
) -> ImageDataset:
    """The handwritten digits, each at random places of a larger image with noise.

    Neighbours by their pixels are of the same place rather than of the same digit. An image follows
    from the seed, its split and its number alone.

    Args:
        size: height and width of the images.
        copies: how many images there are of each digit to train on.
        noise: standard deviation of the noise, where black is 0 and white is 1.
        seed: what places and noise follow from.
        augment: random changes of the images in training.
        normalise: what is subtracted from the pixels and what they are divided by.
    """
    train, test = read_digits()
    splits = [
        _scatter(images, labels, size, noise, [seed, number])
        for number, (images, labels) in enumerate(((_repeat(train, copies)), test))
    ]
    return ImageDataset(
        train=splits[0],
        test=splits[1],
        image_shape=(size, size, 1),
        num_classes=10,
        augment=augment,
        normalise=normalise,
    )


def _repeat(digits: tuple[np.ndarray, np.ndarray], copies: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = digits
    return np.tile(images, (copies, 1, 1, 1)), np.tile(labels, copies)


def _scatter(
    digits: np.ndarray, labels: np.ndarray, size: int, noise: float, seeds: list[int]
) -> ArraySplit:
    images = np.empty((len(digits), size, size, 1), np.uint8)
    for number, digit in enumerate(digits):
        # RandomState, because numpy promises never to change its stream.
        random = np.random.RandomState([*seeds, number])
        top, left = random.randint(0, size - _SIDE + 1, 2)
        image = noise * random.standard_normal((size, size, 1))
        image[top : top + _SIDE, left : left + _SIDE] += digit / _WHITE
        images[number] = np.clip(image * 255.0, 0, 255)
    return ArraySplit(images, labels)
