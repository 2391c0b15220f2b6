"""Formats that a dataset is converted to: files of records, in which one is found by its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from trainer.datasets.splits.extras import import_extra


class Writer(Protocol):
    """A file of records that is being written."""

    def write(self, record: bytes) -> None:
        """Append a record."""

    def close(self) -> None:
        """Finish the file."""


@dataclass(frozen=True)
class TFRecords:
    """TFRecord files.

    Attributes:
        name: of the format, and of the dataset that reads it.
        raw: whether its dataset reads the bytes of arrays.
    """

    name: str = "tfrecord"
    raw: bool = True

    def open(self, file: Path) -> Writer:
        """Begin a file."""
        writer: Writer = tf.io.TFRecordWriter(str(file))
        return writer

    def read(self, file: Path) -> Iterator[bytes]:
        """Yield the records of a file; their checksums are verified."""
        for record in tf.data.TFRecordDataset(str(file)):
            yield bytes(record.numpy())


@dataclass(frozen=True)
class ArrayRecords:
    """ArrayRecord files, each record a chunk of its own, so that one is read without others.

    Attributes:
        name: of the format, and of the dataset that reads it.
        raw: whether its dataset reads the bytes of arrays.
    """

    name: str = "array_record"
    raw: bool = False

    def open(self, file: Path) -> Writer:
        """Begin a file."""
        writer: Writer = _array_record().ArrayRecordWriter(str(file), "group_size:1")
        return writer

    def read(self, file: Path) -> Iterator[bytes]:
        """Yield the records of a file; their checksums are verified."""
        reader = _array_record().ArrayRecordReader(str(file))
        try:
            for _ in range(reader.num_records()):
                yield bytes(reader.read())
        finally:
            reader.close()


FORMATS = {"tfrecord": TFRecords, "array_record": ArrayRecords}


def open_format(name: str) -> TFRecords | ArrayRecords:
    """Return a format by its name.

    Raises:
        ValueError: its package is not installed.
    """
    if name == "array_record":
        import_extra("array_record", "array_record", "to (array_record)")
    return FORMATS[name]()


def _array_record() -> Any:
    from array_record.python import array_record_module  # an extra

    return array_record_module
