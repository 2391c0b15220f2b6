"""Handwritten digits: 1,797 real images of 8 x 8 pixels, in `digits.npz` next to this file.

The data is the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak
(1998), UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, licensed CC BY 4.0, in the
form and order in which scikit-learn ships it. Pixels go from 0 to 16. `digits.npz` holds `images`
[1797, 8, 8] uint8 and `labels` [1797] uint8, unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from trainer.annotations import Ge, Structural
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit, read_npz

NUM_TRAIN = 1437


def digits(
    *,
    image_size: Annotated[list[Annotated[int, Ge(1)]] | None, Structural()] = None,
    augment: Augmentation | None = None,
    normalize: Normalization | None = None,
) -> ImageDataset:
    """Handwritten digits, 1,437 for training and 360 for testing, 8 x 8 x 1, ten classes.

    The split is fixed: a permutation drawn from `numpy.random.RandomState(0)`, whose stream NumPy
    has frozen. The images are ordered by writer, so a split without shuffling would test on other
    people's handwriting.
    """
    train, test = read_digits()
    return ImageDataset(
        train=ArraySplit(*train),
        test=ArraySplit(*test),
        image_shape=(8, 8, 1),
        num_classes=10,
        max_value=16.0,
        image_size=image_size,
        augment=augment,
        normalize=normalize,
    )


def read_digits() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return images [N, 8, 8, 1] uint8, 0 to 16, and labels [N] uint8, to train and to test on."""
    data = read_npz(Path(__file__).with_name("digits.npz"), ("images", "labels"))
    images = data["images"][..., None]
    labels = data["labels"]
    order = np.random.RandomState(0).permutation(len(images))
    return [(images[rows], labels[rows]) for rows in (order[:NUM_TRAIN], order[NUM_TRAIN:])]
