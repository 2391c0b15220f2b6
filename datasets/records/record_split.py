"""A split of records that are read by their index."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from trainer.datasets.images.framing import Framing
from trainer.datasets.images.image_files import CorruptFiles, decode, decode_batch


class RecordSplit:
    """A split of records. Nothing is read before `fetch`.

    Attributes:
        augments: whether `fetch` takes the random numbers of the augmentation.

    Args:
        image_shape: (height, width, channels) of images that are decoded; None: there are none.
    """

    in_memory = False

    def __init__(
        self,
        num_examples: int,
        image_shape: tuple[int, ...] | None,
        framing: Framing,
        corrupt: CorruptFiles,
    ) -> None:
        self.num_examples = num_examples
        self.augments = framing.min_area > 0 and image_shape is not None
        self._image_shape = image_shape
        self._framing = framing
        self._corrupt = corrupt

    def read(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
        """Read the records at `indices`, [B] int64.

        Returns:
            Features [B, ...], or images [B] as bytes; labels, or None; and whether each record is
            good, [B] bool, or None: they all are.
        """
        raise NotImplementedError

    def names(self, indices: np.ndarray) -> list[str]:
        """Return the names of records, as `corrupt` takes them."""
        raise NotImplementedError

    def content_identity(self) -> str:
        """Return a text that changes with what `read` returns."""
        raise NotImplementedError

    def identity(self) -> str:
        """Return a text that changes with what `fetch` returns without random numbers."""
        framing = replace(self._framing, min_area=0.0)
        return f"{self.content_identity()} {self._image_shape} {framing}"

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Read the records at `indices`, [B] int64.

        Args:
            draws: random numbers for training, [B, num_draws] float32 in [0, 1).

        Returns:
            `features` [B, ...], `label` if records have one, and where records may be damaged
            `weight` [B] float32: 0, with zeros, for a damaged one.

        Raises:
            tf.errors.InvalidArgumentError: more records are damaged than may be skipped; the
                message names one. Called eagerly, it is the ValueError of `CorruptFiles`.
        """
        with tf.device("CPU:0"):
            features, label, good = self.read(indices)
            batch = {} if label is None else {"label": label}
            if self._image_shape is not None:
                examples = (features,) if draws is None else (features, draws)
                features, decoded = decode_batch(
                    examples, self._decode, self._image_shape, tf.uint8
                )
                good = decoded if good is None else good & decoded
            if good is None:
                return {**batch, "features": features}
            return {**batch, **self._corrupt.count(features, good, indices, self.names)}

    def _decode(self, content: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        return decode(content, self._image_shape, self._framing, draws=draws)
