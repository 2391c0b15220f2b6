"""Generated images of discs and squares with their masks: a small task of segmentation."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from trainer.annotations import Ge, Lt, Structural
from trainer.datasets.images.images import ImageDataset, check_size
from trainer.datasets.images.normalization import Normalization
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.splits.arrays import ArraySplit

CLASS_NAMES = ("background", "disc", "square")


def shapes(  # noqa: PLR0913 - every option is a key of the configuration
    *,
    num_examples: Annotated[int, Ge(1)] = 1600,
    num_test: Annotated[int, Ge(1)] = 400,
    image_size: Annotated[list[Annotated[int, Ge(16)]], Structural()] = [32, 32],  # noqa: B006 - never changed
    max_shapes: Annotated[int, Ge(1)] = 3,
    noise: Annotated[float, Ge(0)] = 0.1,
    seed: Annotated[int, Ge(0), Lt(4294967296)] = 0,
    augment: Augmentation | None = None,
    normalize: Normalization | None = None,
) -> ImageDataset:
    """Discs and squares of random colors, sizes and places on gray, with their masks.

    An image follows from the seed, its split and its number alone: more of them change no other.
    """
    check_size(image_size)
    height, width = image_size
    splits = [
        _split(seed, number, count, (height, width), max_shapes, noise)
        for number, count in enumerate((num_examples, num_test))
    ]
    return ImageDataset(
        train=splits[0],
        test=splits[1],
        image_shape=(height, width, 3),
        num_classes=len(CLASS_NAMES),
        class_names=CLASS_NAMES,
        has_masks=True,
        augment=augment,
        normalize=normalize,
    )


def _split(
    seed: int, split: int, count: int, size: tuple[int, int], max_shapes: int, noise: float
) -> ArraySplit:
    images = np.empty((count, *size, 3), np.uint8)
    masks = np.empty((count, *size), np.uint8)
    for number in range(count):
        # RandomState, because numpy promises never to change its stream.
        random = np.random.RandomState([seed, split, number])
        images[number], masks[number] = _draw(random, size, max_shapes, noise)
    result = ArraySplit(images, None)
    result.arrays["mask"] = masks
    return result


def _draw(
    random: np.random.RandomState, size: tuple[int, int], max_shapes: int, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw an image, [*size, 3] uint8, and its mask, [*size] uint8."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    image = np.full((*size, 3), random.uniform(0.0, 0.5))
    mask = np.zeros(size, np.uint8)
    for _ in range(random.randint(1, max_shapes + 1)):
        kind = random.randint(1, len(CLASS_NAMES))
        radius = random.uniform(0.15, 0.25) * min(size)
        down = np.abs(rows - random.uniform(0.0, size[0]))
        across = np.abs(columns - random.uniform(0.0, size[1]))
        if CLASS_NAMES[kind] == "disc":
            is_inside = down**2 + across**2 <= radius**2
        else:
            is_inside = np.maximum(down, across) <= radius
        image[is_inside] = random.uniform(0.3, 1.0, 3)
        mask[is_inside] = kind
    image += noise * random.standard_normal(image.shape)
    return np.clip(image * 255.0, 0, 255).astype(np.uint8), mask
