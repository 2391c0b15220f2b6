"""Handwritten digits: 1,797 real images of 8 x 8 pixels, carried in `digits.npz` beside this file, so nothing is downloaded.

The data is the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, licensed CC BY 4.0, in the form and order in which scikit-learn
carries it. Pixels go from 0 to 16. `digits.npz` holds `images` [1797, 8, 8] uint8 and `labels` [1797] uint8, unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from trainer.datasets.arrays import ArraySplit, read_npz
from trainer.datasets.images import ImageDataset

NUM_TRAIN = 1437


def digits(
    *,
    flip: bool = False,
    crop: Annotated[int, ">= 0"] = 0,
    brightness: Annotated[float, ">= 0, <= 1"] = 0.0,
    mean: list[float] | None = None,
    std: Annotated[list[float] | None, "each: > 0"] = None,
    image_size: Annotated[list[int] | None, "each: >= 1"] = None,
) -> ImageDataset:
    """Handwritten digits, 1,437 for training and 360 for testing, 8 x 8 x 1, ten classes.

    The split is a fixed one: a permutation drawn from `numpy.random.RandomState(0)`, whose stream numpy has frozen. The
    images come in the order of the people who wrote them, so cutting without shuffling would test on other hands.

    Args:
        flip: in training, mirror half of the images.
        crop: in training, shift each image by up to so many pixels.
        brightness: in training, change each image's brightness by up to so much, of 1.
        mean: subtract this, one number or one per channel.
        std: then divide by this, one number or one per channel.
        image_size: resize to [height, width].
    """
    data = read_npz(Path(__file__).with_name("digits.npz"), ("images", "labels"))
    images, labels = data["images"][..., None], data["labels"]
    order = np.random.RandomState(0).permutation(len(images))
    train, test = order[:NUM_TRAIN], order[NUM_TRAIN:]
    return ImageDataset(
        train=ArraySplit(images[train], labels[train]),
        test=ArraySplit(images[test], labels[test]),
        image_shape=(8, 8, 1),
        num_classes=10,
        max_value=16.0,
        image_size=image_size,
        flip=flip,
        crop=crop,
        brightness=brightness,
        mean=mean,
        std=std,
    )
