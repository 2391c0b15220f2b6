"""Normalization of images: subtract a mean, divide by a standard deviation."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Gt


class Normalization:
    """(image - mean) / std, with one number for all channels or one per channel."""

    def __init__(
        self,
        *,
        mean: list[float] | None = None,
        std: list[Annotated[float, Gt(0)]] | None = None,
    ) -> None:
        """Take the numbers; with neither of them images stay as they are."""
        self._mean = mean
        self._std = std

    @property
    def mean(self) -> list[float]:
        """What is subtracted, one number or one per channel."""
        return self._mean or [0.0]

    def check(self, num_channels: int) -> None:
        """Raise if the numbers do not suit images of so many channels."""
        for name, values in (("mean", self._mean), ("std", self._std)):
            if values is not None and len(values) not in (1, num_channels):
                raise ValueError(
                    f"normalize.{name} ({list(values)}) must have one number, or one for each of "
                    f"the {num_channels} channels"
                )
        if self._std is not None and min(self._std) <= 0:
            raise ValueError(f"normalize.std ({list(self._std)}) must be positive")

    def apply(self, images: tf.Tensor) -> tf.Tensor:
        """Return normalized images, of the shape and type of `images`, [B, H, W, C] float32."""
        if self._mean is None and self._std is None:
            return images
        mean = tf.constant(self.mean, images.dtype)
        std = tf.constant(self._std or [1.0], images.dtype)
        return (images - mean) / std
