"""User-defined datasets, found by their dotted path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.digits import digits
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.splits.arrays import ArraySplit


class WeightedSplit(ArraySplit):
    """Examples in memory, with weights."""

    def __init__(self, features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        super().__init__(features, labels)
        self._weights = weights

    def fetch(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `features`, `label` and `weight` of the examples at `indices`, [B] int64."""
        with tf.device("CPU:0"):
            return {**super().fetch(indices), "weight": tf.gather(self._weights, indices)}


def poisoned(*, ids: list[int], **options: Any) -> ImageDataset:
    """Return digits of which some training examples, `ids`, have a loss that is NaN.

    Their weights are NaN too: some kernels, such as max pooling, turn NaN features into numbers.
    """
    clean = digits(**options)
    images, labels = (np.array(x) for x in clean.train._tensors)
    images = images.astype(np.float32)
    weights = np.ones(len(labels), np.float32)
    images[ids] = weights[ids] = np.nan
    return replace(clean, train=WeightedSplit(images, labels, weights))


@dataclass(frozen=True, kw_only=True)
class WaveDataset(ImageDataset):
    """Images whose transform is made of vectorized functions, and of a random layer in training.

    Attributes:
        rotation: the random layer.
    """

    rotation: tf.keras.layers.Layer

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        batch = super().transform(batch, draws)
        images = batch["features"]
        if draws is not None:
            images = self.rotation(images, training=True)
        waves = tf.exp(tf.sin(images * 7.3 + 0.1) / 3.0)
        return {**batch, "features": waves / tf.reduce_max(waves, axis=[1, 2, 3], keepdims=True)}


def waves(**options: Any) -> WaveDataset:
    """Return digits of 7 x 5 pixels, so that a kernel's vectors end within a batch of them."""
    smaller = digits(**{**options, "image_size": [7, 5]})
    return WaveDataset(**vars(smaller), rotation=tf.keras.layers.RandomRotation(0.1))
