"""A split over any object that returns records by their index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from trainer.datasets.images.framing import Framing
from trainer.datasets.images.image_files import CorruptFiles, decode, decode_batch
from trainer.datasets.records.record_reader import RecordReader

Read: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""`RecordReader.read`, or what calls it: safe for threads."""


class IndexedSplit:
    """A split of a source's records. Nothing but the first record is read before `fetch`.

    Attributes:
        num_examples: how many records belong to it.
        in_memory: False, `fetch` calls the source.
        augments: whether `fetch` takes the random numbers of the augmentation.
    """

    in_memory = False

    def __init__(
        self,
        reader: RecordReader,
        rows: np.ndarray | None,
        *,
        read: Read,
        framing: Framing,
        corrupt: CorruptFiles,
        source_identity: Callable[[], str],
    ) -> None:
        """Take the reader and the records of this split.

        Args:
            reader: knows the source and its records.
            rows: their numbers, [N] int64; None: all of them.
            read: reads records of the source, with `reader`.
            framing: how encoded images are brought to their size.
            corrupt: counts the images that cannot be decoded.
            source_identity: returns a text that changes with the source's records.
        """
        self.num_examples = len(reader.source) if rows is None else len(rows)
        self.augments = framing.min_area > 0 and reader.layout.encoded
        self._reader = reader
        self._rows = rows
        self._read_records = read
        self._framing = framing
        self._corrupt = corrupt
        self._source_identity = source_identity

    @property
    def labels(self) -> np.ndarray | None:
        """The labels of all examples, [N], if the source has them as an array; else None."""
        labels = getattr(self._reader.source, "labels", None)
        if not isinstance(labels, np.ndarray) or self._reader.layout.label is None:
            return None
        return np.asarray(labels if self._rows is None else labels[self._rows])

    def identity(self) -> str:
        """Return a text that changes with what `fetch` returns without random numbers."""
        reader = self._reader
        rows = "" if self._rows is None else hashlib.sha256(self._rows.tobytes()).hexdigest()
        framing = replace(self._framing, min_area=0.0)
        labels = reader.num_classes, reader.class_names
        return f"{self._source_identity()} {rows} {reader.layout} {labels} {framing}"

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Read the records at `indices`, [B] int64.

        Args:
            indices: which.
            draws: random numbers for training, [B, num_draws] float32 in [0, 1).

        Returns:
            `features` [B, *shape], `label` [B, *label_shape] if records have one, and of encoded
            images `weight` [B] float32: 0, with a black image, where one cannot be decoded.

        Raises:
            tf.errors.InvalidArgumentError: a record cannot be read or is not as the first, or more
                images are damaged than may be skipped; the message names one.
        """
        layout = self._reader.layout
        stored = tf.string if layout.encoded else tf.as_dtype(layout.dtype)
        with tf.device("CPU:0"):
            label_dtype = tf.as_dtype(self._reader.label_dtype)
            features, label = tf.numpy_function(self._read, [indices], [stored, label_dtype])
            label.set_shape([*indices.shape, *layout.label_shape])
            batch = {"label": label} if layout.label is not None else {}
            if not layout.encoded:
                features.set_shape([*indices.shape, *layout.shape])
                return {**batch, "features": features}
            features.set_shape(indices.shape)
            examples = (features,) if draws is None else (features, draws)
            images, good = decode_batch(examples, self._decode, layout.shape, tf.uint8)
            return {**batch, **self._corrupt.count(images, good, indices, self._names)}

    def _read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._read_records(indices if self._rows is None else self._rows[indices])

    def _decode(self, content: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        return decode(content, self._reader.layout.shape, self._framing, draws=draws)

    def _names(self, indices: np.ndarray) -> list[str]:
        rows = indices if self._rows is None else self._rows[indices]
        return [f"record {row} of {self._reader.name}" for row in rows]
