"""Rows of numbers in a file that is appended to and survives a kill at any moment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.files import regular_file, writing

Columns = Sequence[Sequence[Any]]
"""Name, NumPy's name of the type, and shape of each value in a row; can be written as JSON."""


def columns_of(values: Mapping[str, np.ndarray]) -> Columns:
    """Return the columns of values, name -> [n, ...]."""
    return [[name, value.dtype.str, list(value.shape[1:])] for name, value in values.items()]


class RowFile:
    """Rows of a fixed size; a last row that a kill has cut off is removed.

    Attributes:
        count: how many rows there are.

    Args:
        path: the file; created if it does not exist.
        columns: the values of a row.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        self._path = path
        self._dtype = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in columns])
        with writing(path):
            self._file = open(path, "ab", opener=regular_file)  # noqa: SIM115
            self.count = self._file.tell() // self._dtype.itemsize
            self._file.truncate(self.count * self._dtype.itemsize)

    def append(self, values: Mapping[str, np.ndarray]) -> None:
        """Append rows, name -> [n, ...]; return when they are on the disk.

        Raises:
            StorageError: they could not be written.
        """
        rows = np.empty(len(next(iter(values.values()))), self._dtype)
        for name, value in values.items():
            rows[name] = value
        with writing(self._path):
            self._file.write(rows.tobytes())
            self._file.flush()
            os.fsync(self._file.fileno())
        self.count += len(rows)

    def blocks(self, numbers: int) -> Iterator[np.ndarray]:
        """Yield all rows in order, in blocks of about so many numbers."""
        names = self._dtype.names or ()
        row_numbers = sum(int(np.prod(self._dtype[name].shape)) for name in names)
        size = max(1, numbers // row_numbers)
        with self._path.open("rb") as file:
            while content := file.read(size * self._dtype.itemsize):
                yield np.frombuffer(content, self._dtype)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
