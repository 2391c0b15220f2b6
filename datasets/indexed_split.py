"""A split over any object that returns records by their index."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from trainer.datasets.augment import BOX_COLUMNS
from trainer.datasets.decoding import decode_batch
from trainer.datasets.fields import (
    Layout,
    RecordError,
    as_array,
    class_of,
    encoded_image,
    label_of,
    part,
)
from trainer.datasets.framing import Framing
from trainer.datasets.image_files import CorruptFiles, decode


class Indexable(Protocol):
    """What a split reads from; a method `__getitems__(indices)` is used where there is one."""

    def __len__(self) -> int:
        """Return the number of records."""

    def __getitem__(self, index: Any) -> Any:
        """Return the record at an index."""


@dataclass(frozen=True, kw_only=True)
class RecordReader:
    """Reads records of one source, one batch at a time.

    Python runs one batch's `__getitem__` at a time, by the lock that all splits of a dataset share:
    a source need not be safe for threads. Decoding, in the graph, goes on meanwhile.

    Errors have no cause of their own: of those that come out of a pipeline the user sees one line.

    Attributes:
        source: returns records.
        name: the source's name, for messages.
        layout: what records look like.
        num_classes: how many classes there are.
        class_names: name -> class; None: labels are integers.
        lock: held while the source is called.
    """

    source: Indexable
    name: str
    layout: Layout
    num_classes: int
    class_names: dict[str, int] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features and labels of the records `rows`, [B] int64.

        Returns:
            [B, *shape] in the layout's type, or of images [B] bytes; and [B, *label_shape] float32
            of numbers, else int64, 0 where records have no label.

        Raises:
            ValueError: a record cannot be read, or is not as the first; the message names it.
        """
        numbers = [int(row) for row in rows]
        with self.lock:
            records = self._records(numbers)
            pairs = [
                self._checked(row, record) for row, record in zip(numbers, records, strict=True)
            ]
        labels = np.array([label for _, label in pairs], self.label_dtype)
        if self.layout.encoded:
            return np.array([features for features, _ in pairs], object), labels
        return np.stack([features for features, _ in pairs]), labels

    @property
    def label_dtype(self) -> Any:
        """Type of the labels."""
        return np.float32 if self.layout.label_kind == "number" else np.int64

    def _records(self, rows: list[int]) -> Sequence[Any]:
        fetch_many = getattr(self.source, "__getitems__", None)
        if fetch_many is not None:
            try:
                return list(fetch_many(rows))
            except Exception:  # one of them is damaged: read one by one, which finds it
                pass
        return [self._record(row) for row in rows]

    def _record(self, row: int) -> Any:
        try:
            return self.source[row]
        except Exception as error:  # whatever a library raises
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"{self.name}: record {row} cannot be read: {reason}") from None

    def _checked(self, row: int, record: Any) -> tuple[Any, Any]:
        """Return features and label of a record that must look as the first one."""
        layout = self.layout
        try:
            value = part(record, layout.features)
            label: Any = 0
            if layout.label is not None:
                label = self._label(part(record, layout.label))
            if not layout.encoded:
                return self._array(value), label
            content = encoded_image(value)
            # Other bytes are a damaged image, which the graph finds.
            return value if content is None and isinstance(value, bytes) else content or b"", label
        except (RecordError, OSError) as error:
            raise ValueError(f"{self.name}: record {row} {error}") from None

    def _label(self, value: Any) -> Any:
        if self.layout.label_kind == "class":
            return class_of(value, self.class_names, self.num_classes)
        return label_of(value, self.layout)

    def _array(self, value: Any) -> np.ndarray:
        layout = self.layout
        array = as_array(value, None if np.shape(value) == layout.shape else layout.shape)
        if array.dtype != layout.dtype:
            raise RecordError(
                f"has features of {array.dtype}, those of record 0 are {layout.dtype}"
            )
        return array


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
        framing: Framing,
        corrupt: CorruptFiles,
    ) -> None:
        """Take the reader and the records of this split.

        Args:
            reader: reads records of the source.
            rows: their numbers, [N] int64; None: all of them.
            framing: how encoded images are brought to their size.
            corrupt: counts the images that cannot be decoded.
        """
        self.num_examples = len(reader.source) if rows is None else len(rows)
        self.augments = framing.min_area > 0 and reader.layout.encoded
        self._reader = reader
        self._rows = rows
        self._framing = framing
        self._corrupt = corrupt

    @property
    def labels(self) -> np.ndarray | None:
        """The labels of all examples, [N], if the source has them as an array; else None."""
        labels = getattr(self._reader.source, "labels", None)
        if not isinstance(labels, np.ndarray) or self._reader.layout.label is None:
            return None
        return np.asarray(labels if self._rows is None else labels[self._rows])

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
            return {**batch, **self._decoded(features, indices, draws)}

    def _read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._reader.read(indices if self._rows is None else self._rows[indices])

    def _decoded(
        self, contents: tf.Tensor, indices: tf.Tensor, draws: tf.Tensor | None
    ) -> dict[str, tf.Tensor]:
        examples = (contents,) if draws is None else (contents, draws)
        shape = self._reader.layout.shape
        images, good = decode_batch(examples, self._decode, shape, tf.uint8)
        checked = tf.cond(
            tf.reduce_all(good),
            tf.no_op,
            lambda: tf.numpy_function(self._report, [indices, good], []),
        )
        with tf.control_dependencies([checked]):
            return {"features": tf.identity(images), "weight": tf.cast(good, tf.float32)}

    def _decode(self, content: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        box = None if draws is None else tf.gather(draws, BOX_COLUMNS)
        return decode(content, self._reader.layout.shape, self._framing, draws=box)

    def _report(self, indices: np.ndarray, good: np.ndarray) -> None:
        rows = indices if self._rows is None else self._rows[indices]
        names = [f"record {row} of {self._reader.name}".encode() for row in rows]
        self._corrupt.report(np.array(names), good)
