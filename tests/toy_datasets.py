"""A user's own datasets, found by their dotted path."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.datasets.arrays import ArraySplit
from trainer.datasets.digits import digits
from trainer.datasets.images import ImageDataset


def poisoned(*, ids: list[int], factor: float = float("nan"), read: bool = False, **options: Any) -> ImageDataset:
    """Digits of which some training examples are multiplied by a factor, labels turned; `read`: as if from files."""
    clean = digits(**options)
    images, labels = (np.array(x) for x in clean.train._tensors())
    images = images.astype(np.float32)
    images[ids] *= factor
    labels[ids] = (labels[ids] + 1) % 10
    train = ArraySplit(images, labels)
    train.resident = not read
    return ImageDataset(train=train, test=clean.test, image_shape=clean.image_shape, num_classes=10, max_value=clean.max_value, **options)
