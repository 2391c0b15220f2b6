"""Reading of records by their index, in this process or in another one. No TensorFlow."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainer.datasets.records.fields import (
    Layout,
    RecordError,
    as_array,
    class_of,
    encoded_image,
    label_of,
    part,
)
from trainer.text import first_line

logger = logging.getLogger(__name__)


class Indexable(Protocol):
    """What a split reads from; a method `__getitems__(indices)` is used where there is one."""

    def __len__(self) -> int:
        """Return the number of records."""

    def __getitem__(self, index: Any) -> Any:
        """Return the record at an index."""


@dataclass(frozen=True, kw_only=True)
class RecordReader:
    """Reads records of one source; not by several threads at a time.

    Errors have no cause of their own: of those that come out of a pipeline the user sees one line.
    The log has the traceback.

    Attributes:
        source: returns records.
        name: the source's name, for messages.
        layout: what records look like.
        num_classes: how many classes there are.
        class_names: name -> class; None: labels are integers.
    """

    source: Indexable
    name: str
    layout: Layout
    num_classes: int
    class_names: dict[str, int] | None = None

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features and labels of the records `rows`, [B] int64.

        Returns:
            [B, *shape] in the layout's type, or of images [B] bytes; and [B, *label_shape] float32
            of numbers, else int64, 0 where records have no label.

        Raises:
            ValueError: a record cannot be read, or is not as the first; the message names it.
        """
        numbers = [int(row) for row in rows]
        records = self._records(numbers)
        pairs = [self._checked(row, record) for row, record in zip(numbers, records, strict=True)]
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
            logger.info("%s: record %d cannot be read", self.name, row, exc_info=True)
            reason = first_line(error)
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
