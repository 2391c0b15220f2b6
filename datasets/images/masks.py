"""Images with masks: the class of each pixel, which every random change of place moves alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.datasets.images.images import ImageDataset
from trainer.datasets.splits.arrays import ArraySplit

IGNORED = 255
"""Value of a mask's pixels that count neither in the loss nor in a metric."""


class MaskSplit(ArraySplit):
    """A split of images and masks held in host memory."""

    def __init__(self, features: np.ndarray, masks: np.ndarray):
        """Take images [N, H, W, C] and masks [N, H, W] uint8."""
        super().__init__(features, None)
        self.arrays["mask"] = masks


@dataclass(frozen=True, kw_only=True)
class MaskDataset(ImageDataset):
    """Images and masks with their preprocessing.

    A batch has `mask`, [B, H, W] uint8: the class of each pixel, or 255.

    Raises:
        ValueError: the augmentation has a change that moves pixels, and not those of a mask.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.augment is not None:
            self.augment.check_masks()

    def transform(self, batch: dict[str, Any], draws: tf.Tensor | None) -> dict[str, Any]:
        """Turn a fetched batch into what the model sees; see `ImageDataset.transform`.

        Pixels that are shifted in from outside have the class 255 in `mask`.
        """
        batch = super().transform(batch, draws)
        if draws is None or self.augment is None or "mask" not in batch:
            return batch
        return {**batch, "mask": self.augment.apply_to_masks(batch["mask"], draws, IGNORED)}
