"""User-defined datasets, found by their dotted path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.digits import digits
from trainer.datasets.images.images import ImageDataset
from trainer.datasets.splits.arrays import NestSplit


def poisoned(*, ids: list[int], **options: Any) -> ImageDataset:
    """Return digits of which some training examples, `ids`, have a loss that is NaN.

    Their weights are NaN too: some kernels, such as max pooling, turn NaN features into numbers.
    """
    clean = digits(**options)
    images = clean.train.arrays["features"].astype(np.float32)
    weights = np.ones(len(images), np.float32)
    images[ids] = weights[ids] = np.nan
    arrays = {"features": images, "label": clean.train.labels, "weight": weights}
    return replace(clean, train=NestSplit(arrays))


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
