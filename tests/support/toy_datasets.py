"""A user's own datasets, found by their dotted path."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.arrays import ArraySplit
from trainer.datasets.digits import digits
from trainer.datasets.images import ImageDataset


class WeightedSplit(ArraySplit):
    """Examples in memory, with weights."""

    def __init__(self, features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        super().__init__(features, labels)
        self._weights = weights

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `features`, `label` and `weight` of the examples at `indices`, [B] int64."""
        with tf.device("CPU:0"):
            return {**super().fetch(indices), "weight": tf.gather(self._weights, indices)}


def poisoned(
    *, ids: list[int], factor: float = float("nan"), read: bool = False, **options: Any
) -> ImageDataset:
    """Return digits of which some training examples are multiplied by a factor, labels turned.

    A factor of NaN is that of their weights too, so that the loss is NaN on every processor: some
    kernels, such as max pooling, turn NaN features into finite numbers.

    Args:
        ids: these examples.
        factor: by which their features are multiplied.
        read: whether the split is used as if it was read from files.
        options: of the digits.
    """
    clean = digits(**options)
    images, labels = (np.array(x) for x in clean.train._tensors())
    images = images.astype(np.float32)
    images[ids] *= factor
    labels[ids] = (labels[ids] + 1) % 10
    weights = np.ones(len(labels), np.float32)
    weights[ids] = np.nan if np.isnan(factor) else 1.0
    train = WeightedSplit(images, labels, weights)
    train.in_memory = not read
    return ImageDataset(
        train=train,
        test=clean.test,
        image_shape=clean.image_shape,
        num_classes=10,
        max_value=clean.max_value,
        **options,
    )
