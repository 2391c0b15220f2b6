"""Rows of numbers in a file that is appended to, and that a kill at any moment leaves good."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.files import writing

Columns = Sequence[Sequence[Any]]
"""Name, NumPy's name of the type, and shape of each value in a row; can be written as JSON."""


def columns_of(values: Mapping[str, np.ndarray]) -> Columns:
    """Gives the columns of values, name -> [n, ...]."""
    return [[name, value.dtype.str, list(value.shape[1:])] for name, value in values.items()]


class Rows:
    """Rows of a fixed size: what a kill has cut off of the last one is known by the length of the file, and removed.

    Attributes:
        count: how many rows there are.

    Args:
        path: the file; made if it is not there.
        columns: what a row holds.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        self._path, self._dtype = path, np.dtype([(name, kind, tuple(shape)) for name, kind, shape in columns])
        with writing(path):
            self._file = path.open("ab")
            self.count = self._file.tell() // self._dtype.itemsize
            self._file.truncate(self.count * self._dtype.itemsize)

    def append(self, values: Mapping[str, np.ndarray]) -> None:
        """Appends rows, name -> [n, ...], and returns when they are on the disk.

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
        """Gives all rows in order, in blocks of about so many numbers."""
        size = max(1, numbers // sum(int(np.prod(self._dtype[name].shape)) for name in self._dtype.names or ()))
        with self._path.open("rb") as file:
            while content := file.read(size * self._dtype.itemsize):
                yield np.frombuffer(content, self._dtype)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
