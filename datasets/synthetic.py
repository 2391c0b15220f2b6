"""Synthetic images of any size and number, for benchmarks and tests; the same for the same seed."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from trainer.annotations import Ge, Lt, Structural
from trainer.datasets.images.images import ImageDataset, check_size
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit

_CHUNK = 256


def synthetic(  # noqa: PLR0913 - every option is a key of the configuration
    *,
    num_examples: Annotated[int, Ge(1)] = 2048,
    num_test: Annotated[int, Ge(1)] = 512,
    num_classes: Annotated[int, Ge(2), Structural()] = 10,
    image_size: Annotated[list[Annotated[int, Ge(1)]], Structural()] = [32, 32],  # noqa: B006 - never changed
    channels: Annotated[int, Ge(1), Structural()] = 3,
    noise: Annotated[float, Ge(0)] = 0.25,
    seed: Annotated[int, Ge(0), Lt(4294967296)] = 0,
    augment: Augmentation | None = None,
    normalize: Normalization | None = None,
) -> ImageDataset:
    """Synthetic images: each class has a random picture, an example is that picture plus noise."""
    check_size(image_size)
    shape = (*image_size, channels)
    # RandomState, because numpy promises never to change its stream.
    random = np.random.RandomState(seed)
    pictures = random.uniform(0.25, 0.75, (num_classes, *shape)).astype(np.float32)
    train = _sample(random, pictures, num_examples, noise)
    test = _sample(random, pictures, num_test, noise)
    return ImageDataset(
        train=train,
        test=test,
        image_shape=shape,
        num_classes=num_classes,
        augment=augment,
        normalize=normalize,
    )


def _sample(
    random: np.random.RandomState, pictures: np.ndarray, count: int, noise: float
) -> ArraySplit:
    """Draw `count` examples of the classes' pictures, [num_classes, H, W, C] float32."""
    labels = np.arange(count) % len(pictures)
    images = np.empty((count, *pictures.shape[1:]), np.uint8)
    # In pieces: the noise of all examples together, in float64, would be eight times the data.
    for start in range(0, count, _CHUNK):
        clean = pictures[labels[start : start + _CHUNK]]
        noisy = clean + noise * random.standard_normal(clean.shape)
        images[start : start + _CHUNK] = np.clip(noisy * 255.0, 0, 255)
    return ArraySplit(images, labels)
